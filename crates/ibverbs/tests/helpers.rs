//! Tests that the functions that need no device return the same as those of the real libraries, for every relevant
//! input. The real libraries are those that the loader finds.
#![expect(unsafe_code, reason = "calls the real libraries")]
#![expect(clippy::unwrap_used, reason = "tests may panic")]

use ironwarp_ibverbs::abi::*;
use ironwarp_ibverbs::{marshal, sysfs, text};
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::mem::{MaybeUninit, size_of, transmute_copy};

const VERBS: &CStr = c"libibverbs.so.1";
const CM: &CStr = c"librdmacm.so.1";

/// Finds a function of a real library. `F` must be its type.
fn real<F: Copy>(library: &CStr, name: &CStr) -> F {
    assert_eq!(size_of::<F>(), size_of::<*mut c_void>());
    // SAFETY: libraries of rdma-core may be loaded at any time, and stay loaded.
    let handle = unsafe { libc::dlopen(library.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    assert!(!handle.is_null(), "the real {library:?} is not installed");
    // SAFETY: a valid handle from dlopen, and a C string.
    let symbol = unsafe { libc::dlsym(handle, name.as_ptr()) };
    assert!(!symbol.is_null(), "{name:?}");
    let mut info = MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: dladdr succeeded, so that it has filled in all fields, and the name is a C string.
    let path = unsafe {
        assert_ne!(libc::dladdr(symbol, info.as_mut_ptr()), 0);
        CStr::from_ptr(info.assume_init().dli_fname)
    };
    assert!(!path.to_str().unwrap().contains("/dropin/"), "{path:?} is ours: nothing to compare with");
    // SAFETY: `F` is the type of this function, and has the size of a pointer.
    unsafe { transmute_copy(&symbol) }
}

/// Returns small values of either sign, every power of two and its neighbours, and the ends of the range.
fn numbers() -> impl Iterator<Item = i32> {
    let powers = (0..32).flat_map(|bit| (-1..=1).map(move |by| (1_i32 << bit).wrapping_add(by)));
    (-70_000..70_000).chain(powers).chain([i32::MIN, i32::MAX])
}

fn string(text: *const c_char) -> String {
    // SAFETY: both libraries return a static string for any value.
    unsafe { CStr::from_ptr(text) }.to_str().unwrap().to_owned()
}

/// Values that an older real library may not know.
const LATER: &[(&CStr, u32, &str)] = &[
    (c"ibv_event_type_str", IBV_EVENT_DEVICE_SPEED_CHANGE, "Device link speed change"),
    (c"rdma_event_str", RDMA_CM_EVENT_ADDRINFO_RESOLVED, "RDMA_CM_EVENT_ADDRINFO_RESOLVED"),
    (c"rdma_event_str", RDMA_CM_EVENT_ADDRINFO_ERROR, "RDMA_CM_EVENT_ADDRINFO_ERROR"),
];

#[test]
fn values_have_the_same_names() {
    type Name = extern "C" fn(u32) -> *const c_char;
    let pairs: [(&CStr, &CStr, Name); 4] = [
        (VERBS, c"ibv_wc_status_str", text::ibv_wc_status_str),
        (VERBS, c"ibv_event_type_str", text::ibv_event_type_str),
        (VERBS, c"ibv_port_state_str", text::ibv_port_state_str),
        (CM, c"rdma_event_str", text::rdma_event_str),
    ];
    for (library, name, ours) in pairs {
        let real: Name = real(library, name);
        for value in numbers().map(i32::cast_unsigned) {
            let later = LATER.iter().find(|later| (later.0, later.1) == (name, value));
            let real = string(real(value));
            let unknown = real.to_lowercase().starts_with("unknown");
            let real = later.filter(|_| unknown).map_or(real, |later| later.2.to_owned());
            assert_eq!(string(ours(value)), real, "{name:?} of {value}");
        }
    }
    let real: extern "C" fn(i32) -> *const c_char = real(VERBS, c"ibv_node_type_str");
    numbers()
        .for_each(|value| assert_eq!(string(text::ibv_node_type_str(value)), string(real(value)), "{value}"));
}

/// Only later releases have this function.
#[test]
fn opcodes_have_the_names_of_later_releases() {
    let name = |opcode| string(text::ibv_wr_opcode_str(opcode));
    assert_eq!(name(IBV_WR_RDMA_WRITE_WITH_IMM), "rdma-write-with-imm");
    assert_eq!(name(IBV_WR_SEND), "send");
    assert_eq!(name(IBV_WR_SEND_WITH_INV), "send-with-inv");
    assert_eq!(name(IBV_WR_DRIVER1), "driver1");
    assert_eq!(name(IBV_WR_ATOMIC_WRITE), "atomic-write");
    for unknown in [12, 13, 16, u32::MAX] {
        assert_eq!(name(unknown), "unknown", "{unknown}");
    }
}

#[test]
fn rates_are_the_same_in_both_directions() {
    let to_mult: extern "C" fn(ibv_rate) -> c_int = real(VERBS, c"ibv_rate_to_mult");
    let to_mbps: extern "C" fn(ibv_rate) -> c_int = real(VERBS, c"ibv_rate_to_mbps");
    for value in numbers().map(i32::cast_unsigned) {
        assert_eq!(text::ibv_rate_to_mult(value), to_mult(value), "{value}");
        assert_eq!(text::ibv_rate_to_mbps(value), to_mbps(value), "{value}");
    }
    let of_mult: extern "C" fn(c_int) -> ibv_rate = real(VERBS, c"mult_to_ibv_rate");
    let of_mbps: extern "C" fn(c_int) -> ibv_rate = real(VERBS, c"mbps_to_ibv_rate");
    for value in numbers().chain(70_000..1_500_000) {
        assert_eq!(text::mult_to_ibv_rate(value), of_mult(value), "{value}");
        assert_eq!(text::mbps_to_ibv_rate(value), of_mbps(value), "{value}");
    }
}

type Copier<To, From> = unsafe extern "C" fn(*mut To, *const From);

/// Checks that both functions copy the same bytes to the same places. Source and destination are filled with different
/// patterns, which show where each byte came from, and which were not written.
fn assert_same_copy<To, From>(ours: Copier<To, From>, name: &CStr) {
    let real: Copier<To, From> = real(VERBS, name);
    for seed in 0..=255_u8 {
        let source: Vec<u8> = (0..size_of::<From>()).map(|at| mix(seed, at)).collect();
        let copied = |copier: Copier<To, From>| {
            let mut from = MaybeUninit::<From>::uninit();
            let mut to = MaybeUninit::<To>::uninit();
            // SAFETY: both types consist of integers, for which any bytes are valid.
            unsafe {
                from.as_mut_ptr().cast::<u8>().copy_from_nonoverlapping(source.as_ptr(), source.len());
                to.as_mut_ptr().write_bytes(!seed, 1);
                copier(to.as_mut_ptr(), from.as_ptr());
                std::slice::from_raw_parts(to.as_ptr().cast::<u8>(), size_of::<To>()).to_vec()
            }
        };
        assert_eq!(copied(ours), copied(real), "{name:?}, seed {seed}");
    }
}

/// Returns a byte of the source pattern.
fn mix(seed: u8, at: usize) -> u8 {
    let [low, high, ..] = at.wrapping_mul(0x9e37).to_le_bytes();
    seed ^ low ^ high
}

#[test]
fn attributes_are_copied_field_by_field() {
    assert_same_copy(marshal::ibv_copy_ah_attr_from_kern, c"ibv_copy_ah_attr_from_kern");
    assert_same_copy(marshal::ibv_copy_qp_attr_from_kern, c"ibv_copy_qp_attr_from_kern");
    assert_same_copy(marshal::ibv_copy_path_rec_from_kern, c"ibv_copy_path_rec_from_kern");
    assert_same_copy(marshal::ibv_copy_path_rec_to_kern, c"ibv_copy_path_rec_to_kern");
}

#[test]
fn copies_with_null_do_nothing() {
    let mut attr = ibv_ah_attr::zeroed();
    attr.dlid = 7;
    // SAFETY: NULL is allowed.
    unsafe {
        marshal::ibv_copy_ah_attr_from_kern(&raw mut attr, std::ptr::null());
        marshal::ibv_copy_ah_attr_from_kern(std::ptr::null_mut(), std::ptr::null());
    }
    assert_eq!(attr.dlid, 7);
}

type Read = unsafe extern "C" fn(*const c_char, *const c_char, *mut c_char, usize) -> c_int;

/// Reads a file with a function, and returns its result, the errno, and the content of the buffer.
fn read(function: Read, dir: &CStr, file: &CStr, size: usize) -> (c_int, c_int, [u8; 16]) {
    let mut buffer = [b'#'; 16];
    assert!(size <= buffer.len());
    // SAFETY: two C strings, and a buffer of at least `size` bytes.
    unsafe {
        *libc::__errno_location() = 0;
        let length = function(dir.as_ptr(), file.as_ptr(), buffer.as_mut_ptr().cast(), size);
        (length, *libc::__errno_location(), buffer)
    }
}

#[test]
fn small_files_are_read_the_same_way() {
    let real: Read = real(VERBS, c"ibv_read_sysfs_file");
    let folder =
        std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("sysfs-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let dir = CString::new(folder.to_str().unwrap()).unwrap();
    for contents in ["", "\n", "abc", "abc\n", "abc\n\n", "abcd", "abcd\n", "abc\nd", "\n\n", "a\0b"] {
        std::fs::write(folder.join("file"), contents).unwrap();
        for size in 0..=16 {
            let (ours, real) =
                (read(sysfs::ibv_read_sysfs_file, &dir, c"file", size), read(real, &dir, c"file", size));
            assert_eq!(ours, real, "{contents:?} into {size} bytes");
        }
    }
    for absent in [c"no-such-file", c"", c"file/file"] {
        assert_eq!(
            read(sysfs::ibv_read_sysfs_file, &dir, absent, 8),
            read(real, &dir, absent, 8),
            "{absent:?}"
        );
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_file_without_a_name_is_an_error() {
    // SAFETY: NULL is allowed.
    let length =
        unsafe { sysfs::ibv_read_sysfs_file(std::ptr::null(), c"x".as_ptr(), std::ptr::null_mut(), 0) };
    assert_eq!(length, -1);
    assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::EINVAL));
}

/// A process looks up the path once, so that each value needs a process of its own: this test starts itself again.
#[test]
fn sysfs_is_where_the_environment_says() {
    const AGAIN: &str = "IRONWARP_TEST_SYSFS_PATH";
    type Path = extern "C" fn() -> *const c_char;
    if std::env::var_os(AGAIN).is_some() {
        let real: Path = real(VERBS, c"ibv_get_sysfs_path");
        assert_eq!(string(sysfs::ibv_get_sysfs_path()), string(real()));
        return;
    }
    let long = "/x".repeat(200);
    for path in [None, Some(""), Some("/"), Some("/sys//"), Some("relative"), Some(&long), Some(&long[1..])] {
        let mut again = std::process::Command::new(std::env::current_exe().unwrap());
        again
            .args(["--exact", "sysfs_is_where_the_environment_says"])
            .env(AGAIN, "1")
            .env_remove("SYSFS_PATH");
        again.envs(path.map(|path| ("SYSFS_PATH", path)));
        let output = again.output().unwrap();
        assert!(output.status.success(), "{path:?}: {}", String::from_utf8_lossy(&output.stdout));
    }
}
