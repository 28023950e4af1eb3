//! The exported and required symbols of a shared library, as printed by `readelf`.

use super::pinned::{Pinned, RELEASES};
use crate::shell::{Result, at, command, output};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

pub(super) const REAL: [&str; 2] = ["libibverbs.so.1", "librdmacm.so.1"];

/// The glibc of the oldest systems still in use.
const GLIBC: [u32; 2] = [2, 28];

/// A line of the dynamic symbol table: `name@@NODE` is the version that programs are linked with, `name@NODE`
/// another one.
pub(super) struct Symbol {
    name: String,
    defined: bool,
}

/// Compares with the original libraries, and with the lists of all releases.
pub(super) fn compare(file: &Path, compat: &Path, originals: &[PathBuf]) -> Result {
    let compat = fs::read_to_string(compat).map_err(at(compat))?;
    let ours = exported(&symbols(file)?);
    let mut all = BTreeSet::new();
    let mut findings = Vec::new();
    let mut of = |name: &str, real: BTreeSet<String>| {
        findings.extend(missing(&ours, &real).map(|symbol| format!("  missing: {symbol}, of {name}")));
        println!("{name}: {} symbols", real.len());
        all.extend(real);
    };
    let mut installed = BTreeSet::new();
    for library in originals {
        installed.extend(exported(&symbols(library)?));
    }
    of("the libraries here", installed);
    for release in RELEASES {
        of(&format!("Debian {release}"), Pinned::read(release)?.symbols);
    }
    findings.extend(extra(&ours, &all, &compat).map(|symbol| format!("  extra: {symbol}")));
    if findings.is_empty() {
        return Ok(());
    }
    Err(format!("{} differs from the original libraries:\n{}", file.display(), findings.join("\n")))
}

/// The oldest glibc that the files run with, such as `2.28`.
pub(crate) fn oldest_glibc() -> String {
    dotted(&GLIBC)
}

fn dotted(version: &[u32]) -> String {
    version.iter().map(u32::to_string).collect::<Vec<_>>().join(".")
}

/// Prints the glibc version that a file needs, which must not be newer than promised.
pub(crate) fn check_glibc(file: &Path) -> Result {
    let Some((version, names)) = newest(&symbols(file)?) else {
        return Err(format!("{} does not need glibc", file.display()));
    };
    let number = dotted(&version);
    if version[..] > GLIBC[..] {
        let names = names.join(", ");
        return Err(format!("{} needs glibc {number}, for {names}: see glibc.c", file.display()));
    }
    println!("{} needs glibc {number}", file.display());
    Ok(())
}

/// The highest version of glibc that a file needs, with the symbols that need it.
fn newest(symbols: &[Symbol]) -> Option<(Vec<u32>, Vec<String>)> {
    let mut wanted: BTreeMap<Vec<u32>, Vec<String>> = BTreeMap::new();
    for symbol in symbols.iter().filter(|symbol| !symbol.defined) {
        if let Some((name, version)) = symbol.name.split_once("@GLIBC_") {
            let version = version.split('.').filter_map(|part| part.parse().ok()).collect();
            wanted.entry(version).or_default().push(name.to_owned());
        }
    }
    wanted.pop_last()
}

/// Symbols missing in ours. A private symbol is the default of one node in one release, and of another in the
/// next; programs linked with it ask for the node, whether or not it is the default.
fn missing<'s>(ours: &'s BTreeSet<String>, real: &'s BTreeSet<String>) -> impl Iterator<Item = &'s String> {
    real.iter().filter(|symbol| {
        let private = symbol.contains("@@IBVERBS_PRIVATE_");
        let other = private && ours.contains(&symbol.replacen("@@", "@", 1));
        !other && !ours.contains(*symbol)
    })
}

/// Symbols in ours without a reason. compat.S lists symbols of other releases and, without a node, those that
/// take precedence over the C library's.
fn extra<'s>(
    ours: &'s BTreeSet<String>,
    real: &'s BTreeSet<String>,
    compat: &'s str,
) -> impl Iterator<Item = &'s String> {
    let listed = move |symbol: &String| {
        let (name, node) = symbol.split_once('@').unwrap_or((symbol, ""));
        let of_driver = node.starts_with("IBVERBS_PRIVATE_") && compat.contains(&format!("({name})\n"));
        of_driver || compat.contains(&format!("\nAT({node}, {name}, "))
    };
    ours.difference(real).filter(move |symbol| !listed(symbol))
}

pub(super) fn exported(symbols: &[Symbol]) -> BTreeSet<String> {
    symbols.iter().filter(|symbol| symbol.defined).map(|symbol| symbol.name.clone()).collect()
}

pub(super) fn symbols(file: &Path) -> Result<Vec<Symbol>> {
    Ok(parse(&output(command("readelf", &["--dyn-syms", "--wide"]).arg(file))?))
}

/// Columns are number, value, size, type, binding, visibility, section and name. The table also contains the
/// nodes, as absolute objects, and on aarch64 sections, as local symbols.
fn parse(table: &str) -> Vec<Symbol> {
    let row = |line: &str| {
        let columns: Vec<&str> = line.split_whitespace().collect();
        let [_, _, _, _, binding, _, section, name, ..] = columns[..] else { return None };
        let (defined, local) = (section != "UND", binding == "LOCAL");
        (section != "Ndx" && section != "ABS" && !local).then(|| Symbol { name: name.to_owned(), defined })
    };
    table.lines().filter_map(row).collect()
}

/// Where the linker would find a library. If it knows none, the compiler prints the bare name.
pub(super) fn find(library: &str) -> Result<PathBuf> {
    let path = output(&mut command("cc", &[&format!("-print-file-name={library}")]))?;
    let path = PathBuf::from(path.trim());
    if path.is_absolute() { Ok(path) } else { Err(format!("{library} is missing: run `cargo xtask setup`")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "
Symbol table '.dynsym' contains 7 entries:
   Num:    Value          Size Type    Bind   Vis      Ndx Name
     0: 0000000000000000     0 NOTYPE  LOCAL  DEFAULT  UND
     1: 0000000000000000     0 FUNC    GLOBAL DEFAULT  UND free@GLIBC_2.2.5 (2)
     6: 0000000000000000     0 FUNC    GLOBAL DEFAULT  UND accept4@GLIBC_2.10 (3)
     2: 0000000000001f39    11 FUNC    GLOBAL DEFAULT   11 ibv_reg_mr@@IBVERBS_1.1
     3: 0000000000001f44    11 FUNC    GLOBAL DEFAULT   11 ibv_reg_mr@IBVERBS_1.0
     4: 0000000000000000     0 OBJECT  GLOBAL DEFAULT  ABS IBVERBS_1.1
     5: 0000000000001f50    11 FUNC    GLOBAL DEFAULT   11 open
     7: 0000000000001000     0 SECTION LOCAL  DEFAULT    9 .init
";

    #[test]
    fn names_and_versions_are_read() {
        let symbols = parse(TABLE);
        let names: Vec<String> = exported(&symbols).into_iter().collect();
        assert_eq!(names, ["ibv_reg_mr@@IBVERBS_1.1", "ibv_reg_mr@IBVERBS_1.0", "open"]);
    }

    #[test]
    fn the_newest_glibc_is_found_by_number() {
        let symbols = parse(TABLE);
        assert_eq!(newest(&symbols), Some((vec![2, 10], vec!["accept4".to_owned()])));
        assert!(newest(&[]).is_none());
    }

    #[test]
    fn what_is_missing_and_what_is_extra_is_named() {
        let set = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>();
        let private = ["d@@IBVERBS_PRIVATE_1", "e@@IBVERBS_PRIVATE_1"];
        let ours = set(&["a@@V", "a@U", "b@V", "open", "rust", "d@IBVERBS_PRIVATE_1", "d@IBVERBS_PRIVATE_2"]);
        let real = set(&["a@@V", "b@@V", private[0], private[1]]);
        let compat = "\nAT(, open, ironwarp_open)\nAT(U, a, a)\nDRIVER_1(d)\n";
        assert_eq!(missing(&ours, &real).collect::<Vec<_>>(), ["b@@V", private[1]]);
        assert_eq!(extra(&ours, &real, compat).collect::<Vec<_>>(), ["b@V", "rust"]);
    }
}
