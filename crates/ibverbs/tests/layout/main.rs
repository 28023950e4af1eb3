//! Tests that the `abi` module matches the C headers. A C program, compiled against the real headers, prints their
//! layout: the size of every structure, the offset of every field, the value of every constant. The `abi` module must
//! have the same values, and lack nothing.
//!
//! The `abi` module has the layout of the newest release, while the installed headers may be older: structures grew,
//! and constants were added. `newest.txt` has the output for the newest headers of everything that rdma-core 44 lacks
//! or has smaller. `cargo xtask releases` compares everything with the headers of each release of Debian, by two
//! environment variables:
//!
//! | variable | directory of headers to compare with |
//! |---|---|
//! | `IRON_TEST_HEADERS` | instead of the system's |
//! | `IRON_TEST_NEWEST_HEADERS` | of the newest release, from which `newest.txt` is generated |

#![expect(clippy::unwrap_used, reason = "tests may panic")]

mod structures;

use ironwarp_ibverbs::abi::*;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io::Write as _;
use std::mem::{offset_of, size_of};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

/// The layout of a structure in Rust, with the names of C.
struct Structure {
    name: &'static str,
    size: usize,
    fields: Vec<(&'static str, usize)>,
}

const INCLUDES: &str = "#include <stdio.h>
#include <stddef.h>
#include <infiniband/verbs.h>
#include <infiniband/sa.h>
#include <infiniband/tm_types.h>
#include <rdma/ib_user_sa.h>
#include <rdma/rdma_cma.h>
#include <rdma/rsocket.h>
";

/// The sizes of unions, and the offsets of their members, which `structures` does not contain.
fn places() -> Vec<(String, usize)> {
    macro_rules! size {
        ($type:ty, $c:expr) => {
            (format!("sizeof({})", $c), size_of::<$type>())
        };
    }
    macro_rules! offset {
        ($type:ty, $($path:tt)+) => {
            (format!("offsetof(struct {}, {})", stringify!($type), stringify!($($path)+)), offset_of!($type, $($path)+))
        };
    }
    let sub = |type_: &str, member: &str| format!("((struct {type_} *)0)->{member}");
    vec![
        size!(ibv_gid, "union ibv_gid"),
        size!(ibv_send_wr_remote, sub("ibv_send_wr", "wr")),
        size!(ibv_send_wr_extra, sub("ibv_send_wr", "bind_mw")),
        size!(ibv_async_event_element, sub("ibv_async_event", "element")),
        size!(rdma_sockaddr, sub("rdma_addr", "src_storage")),
        size!(rdma_cm_event_param, sub("rdma_cm_event", "param")),
        ("offsetof(struct ibv_send_wr, invalidate_rkey)".into(), offset_of!(ibv_send_wr, imm_data)),
        ("offsetof(struct ibv_send_wr, tso)".into(), offset_of!(ibv_send_wr, extra)),
        ("offsetof(struct ibv_wc, invalidated_rkey)".into(), offset_of!(ibv_wc, imm_data)),
        ("offsetof(struct rdma_addr, src_sin6)".into(), offset_of!(rdma_addr, src.sin6)),
        offset!(ibv_send_wr, wr.atomic.rkey),
        offset!(ibv_send_wr, wr.ud.remote_qkey),
        offset!(ibv_send_wr, qp_type.xrc.remote_srqn),
        offset!(ibv_qp_attr, ah_attr.grh.traffic_class),
        offset!(rdma_cm_id, route.addr.addr),
        offset!(rdma_cm_event, param.ud.qkey),
        ("offsetof(struct ibv_port_attr, port_cap_flags2)".into(), COMPAT_PORT_ATTR_LEN),
        ("(size_t)__VERBS_ABI_IS_EXTENDED".into(), VERBS_ABI_IS_EXTENDED),
    ]
}

/// All constants of the `abi` module: their names in C, and their values.
fn constants() -> impl Iterator<Item = &'static (&'static str, i128)> {
    [CODES, FLAGS, SA_CONSTANTS, CM_CONSTANTS].into_iter().flatten()
}

/// The expected output of the C program: each expression, and its value in Rust.
fn expected() -> BTreeMap<String, i128> {
    let mut expected = BTreeMap::new();
    let number = |value: usize| i128::try_from(value).unwrap();
    for structure in structures::structures() {
        let name = structure.name;
        expected.insert(format!("sizeof({name})"), number(structure.size));
        let fields = structure.fields.iter();
        expected.extend(fields.map(|(field, at)| (format!("offsetof({name}, {field})"), number(*at))));
    }
    expected.extend(places().into_iter().map(|(place, value)| (place, number(value))));
    expected.extend(constants().map(|(name, value)| ((*name).to_owned(), *value)));
    expected
}

/// The output for the newest headers: a line for each expression, with its value.
const NEWEST: &str = include_str!("newest.txt");

fn newest() -> BTreeMap<String, i128> {
    NEWEST.lines().filter(|line| !line.starts_with('#')).map(parse).collect()
}

/// Parses a line: an expression, and its value.
fn parse(line: &str) -> (String, i128) {
    let (expression, value) = line.rsplit_once(' ').unwrap();
    (expression.to_owned(), value.parse().unwrap())
}

/// The compiler option for the directory of headers that an environment variable names. Empty if it is not set.
fn include_option(variable: &str) -> Vec<String> {
    let folder = std::env::var(variable).ok();
    folder.map_or_else(Vec::new, |folder| vec!["-I".to_owned(), folder])
}

const HEADERS: &str = "IRON_TEST_HEADERS";
const NEWEST_HEADERS: &str = "IRON_TEST_NEWEST_HEADERS";

/// Compiles a C program that prints the value of each expression, runs it, and returns its output.
fn print_in_c(headers: &[String], expressions: impl Iterator<Item = String>) -> BTreeMap<String, i128> {
    let mut source = format!("{INCLUDES}\nint main(void)\n{{\n");
    for expression in expressions {
        let format = format!("({expression}) < 0 ? \"{expression} %lld\\n\" : \"{expression} %llu\\n\"");
        writeln!(source, "    printf({format}, (long long)({expression}));").unwrap();
    }
    source.push_str("    return 0;\n}\n");
    static PROGRAMS: AtomicUsize = AtomicUsize::new(0);
    let number = PROGRAMS.fetch_add(1, Ordering::Relaxed);
    let program =
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("layout-{}-{number}", std::process::id()));
    compile(headers, &["-Wno-all", "-o", program.to_str().unwrap()], &source);
    let output = Command::new(&program).output().unwrap();
    std::fs::remove_file(&program).unwrap();
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(parse).collect()
}

/// Passes the source to the C compiler, and returns its output.
fn compile(headers: &[String], options: &[&str], source: &str) -> String {
    let mut compiler = Command::new("cc")
        .args(["-x", "c", "-"])
        .args(headers)
        .args(options)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the tests of layouts need a C compiler");
    compiler.stdin.take().unwrap().write_all(source.as_bytes()).unwrap();
    let output = compiler.wait_with_output().unwrap();
    assert!(
        output.status.success(),
        "the C compiler does not take it: are libibverbs-dev and librdmacm-dev there?"
    );
    String::from_utf8(output.stdout).unwrap()
}

/// Fails if a value in Rust differs from that in C.
fn compare(real: &BTreeMap<String, i128>) {
    let expected = expected();
    let wrong: Vec<String> = real
        .iter()
        .filter(|(expression, value)| expected.get(*expression) != Some(*value))
        .map(|(expression, value)| format!("{expression} is {value}, ours is {:?}", expected.get(expression)))
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn layouts_and_constants_are_those_of_the_headers() {
    let (mut expected, newest) = (expected(), newest());
    expected.retain(|expression, _| !newest.contains_key(expression));
    let real = print_in_c(&include_option(HEADERS), expected.keys().cloned());
    assert_eq!(real.len(), expected.len());
    compare(&real);
}

#[test]
fn layouts_and_constants_of_the_newest_headers_are_ours() {
    let newest = newest();
    compare(&newest);
    let headers = include_option(NEWEST_HEADERS);
    if !headers.is_empty() {
        let real = print_in_c(&headers, expected().into_keys());
        compare(&real);
        assert!(newest.iter().all(|(expression, value)| real.get(expression) == Some(value)));
    }
}

/// Parts of the names of C structures that are not needed: those of packet steering, whose calls fail without reading
/// them.
const NOT_OURS: &[&str] = &["ibv_flow_spec", "ibv_flow_action_esp", "_filter"];

#[test]
fn nothing_of_the_headers_is_missing() {
    let newest = include_option(NEWEST_HEADERS);
    let headers = if newest.is_empty() { include_option(HEADERS) } else { newest };
    let preprocessed = compile(&headers, &["-E"], INCLUDES);
    let macros = compile(&headers, &["-E", "-dM"], INCLUDES);
    let words = |text: &str| -> BTreeSet<String> {
        text.split(|c: char| !c.is_alphanumeric() && c != '_').map(str::to_owned).collect()
    };
    let constants: BTreeSet<String> = constants().map(|(name, _)| (*name).to_owned()).collect();
    let ours = ["IBV_", "RAI_", "RDMA_CM_", "RDMA_PS_", "RDMA_OPTION_", "RDMA_MC_", "RDMA_MAX_", "RDMA_IB_"];
    let defined = macros.lines().filter_map(|line| line.strip_prefix("#define ")?.split_once(' '));
    let defined =
        defined.filter(|(name, value)| !name.contains('(') && !value.contains("void")).map(|(name, _)| name);
    let missing: Vec<String> = words(&preprocessed)
        .into_iter()
        .chain(defined.map(str::to_owned))
        .filter(|word| ours.iter().any(|start| word.starts_with(start)) && !constants.contains(word))
        .collect();
    assert!(missing.is_empty(), "constants: {missing:?}");

    let structures: BTreeSet<&str> =
        structures::structures().iter().filter_map(|s| s.name.strip_prefix("struct ")).collect();
    let declared = preprocessed.lines().filter_map(|line| line.strip_prefix("struct ")?.strip_suffix(" {"));
    let missing: Vec<&str> = declared
        .filter(|name| ["ibv_", "rdma_", "verbs_"].iter().any(|start| name.starts_with(start)))
        .filter(|name| !structures.contains(name) && !NOT_OURS.iter().any(|part| name.contains(part)))
        .collect();
    assert!(missing.is_empty(), "structures: {missing:?}");
}
