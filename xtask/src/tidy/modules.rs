//! The modules of a crate depend in one direction.
//!
//! Each folder of modules is judged alone. Its nodes are its children, each with everything below it, and the folder's own file
//! (`lib.rs`, `mod.rs`). A node depends on another if its code names an item that the other defines; re-exports are looked
//! through. A circle of such dependencies is reported with the references that close it.

use super::files::Files;
use crate::workspace::Workspace;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use syn::visit::{self, Visit};
use syn::{Attribute, ImplItem, Item, UseTree, Visibility};

/// The path of a module from the root of its crate.
type Path = Vec<String>;

/// Maximum number of imports and re-exports to follow from one name: a `use` can name itself.
const MAX_REEXPORTS: usize = 4;

pub(super) fn check(workspace: &Workspace, files: &Files) -> Vec<String> {
    let targets = workspace.members.iter().flat_map(|member| &member.targets);
    let judged = targets.filter(|target| ["lib", "rlib", "cdylib", "bin"].contains(&target.kind.as_str()));
    let roots: BTreeSet<&str> = judged.map(|target| target.source.as_str()).collect();
    let findings: BTreeSet<String> = roots.into_iter().flat_map(|root| check_crate(root, files)).collect(); // roots may share files
    findings.into_iter().collect()
}

fn check_crate(root: &str, files: &Files) -> Vec<String> {
    let mut tree = Tree::default();
    let directory = root.rsplit_once('/').map_or("", |(directory, _)| directory);
    if let Err(finding) = tree.read(files, root, directory, Path::new()) {
        return vec![finding];
    }
    tree.folders().into_values().flat_map(Folder::circles).collect()
}

/// The modules of a crate, without those that exist only for tests.
#[derive(Default)]
struct Tree {
    modules: BTreeMap<Path, Module>,
}

#[derive(Default)]
struct Module {
    file: String,
    /// The module whose file this one is in: itself, unless it is an inline module.
    owner: Path,
    items: BTreeSet<String>,
    /// What `use` brings into it, by the name that it has here.
    imports: BTreeMap<String, Path>,
    globs: Vec<Path>,
    references: Vec<Reference>,
}

struct Reference {
    path: Path,
    line: usize,
}

impl Tree {
    /// Reads a file and those of its submodules, which are in `directory`.
    fn read(&mut self, files: &Files, file: &str, directory: &str, path: Path) -> Result<(), String> {
        let text = files.get(file).ok_or_else(|| format!("{file}: no such file"))?;
        let parsed = syn::parse_file(text).map_err(|error| format!("{file}: {error}"))?;
        let place = Place { files, file, directory, owner: &path };
        self.add(&place, &path, &parsed.items)
    }

    /// Adds a module that consists of these items, and its submodules.
    fn add(&mut self, place: &Place<'_>, path: &Path, items: &[Item]) -> Result<(), String> {
        let mut module =
            Module { file: place.file.to_owned(), owner: place.owner.clone(), ..Module::default() };
        let mut reader = Reader { module: &mut module, exported: Vec::new(), words: BTreeSet::new() };
        items.iter().for_each(|item| reader.visit_item(item));
        reader.finish();
        self.modules.insert(path.clone(), module);
        for item in items {
            if let Item::Mod(child) = item
                && !is_test(&child.attrs)
            {
                let name = child.ident.to_string();
                let path = [&path[..], std::slice::from_ref(&name)].concat();
                let directory = format!("{}/{name}", place.directory);
                match &child.content {
                    Some((_, items)) => self.add(&Place { directory: &directory, ..*place }, &path, items)?,
                    None => {
                        let flat = format!("{directory}.rs");
                        let file = if place.files.contains_key(&flat) {
                            flat
                        } else {
                            format!("{directory}/mod.rs")
                        };
                        self.read(place.files, &file, &directory, path)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// What `path` means in `module`; none if it is not of this crate.
    fn locate(&self, module: &Path, path: &[String], depth: usize) -> Option<Target> {
        let mut at = module.clone();
        for (index, segment) in path.iter().enumerate() {
            at = match segment.as_str() {
                "crate" => Path::new(),
                "self" => at,
                "super" => parent(&at),
                name => match self.enter(&at, name, depth) {
                    Some(Target::Module(path)) => path,
                    Some(item) => return Some(item),
                    None if index == 0 => return None,
                    None => return Some(Target::Item(self.modules[&at].owner.clone())), // made by a macro
                },
            };
        }
        Some(Target::Module(at))
    }

    /// What a name means in a module: a submodule, an item or something imported.
    fn enter(&self, module: &Path, name: &str, depth: usize) -> Option<Target> {
        let child = [&module[..], &[name.to_owned()]].concat();
        if self.modules.contains_key(&child) {
            return Some(Target::Module(child));
        }
        let here = &self.modules[module];
        if here.items.contains(name) {
            return Some(Target::Item(here.owner.clone()));
        }
        let depth = depth.checked_sub(1)?;
        if let Some(import) = here.imports.get(name) {
            return self.locate(module, import, depth);
        }
        here.globs.iter().find_map(|glob| match self.locate(module, glob, depth)? {
            Target::Module(from) => self.enter(&from, name, depth),
            Target::Item(_) => None,
        })
    }

    /// The graph of each module that has submodules.
    fn folders(&self) -> BTreeMap<Path, Folder> {
        let mut folders: BTreeMap<Path, Folder> = BTreeMap::new();
        for (path, module) in &self.modules {
            for reference in &module.references {
                // What is used of a module counts, not that its name is brought into scope.
                let Some(Target::Item(to)) = self.locate(path, &reference.path, MAX_REEXPORTS) else {
                    continue;
                };
                let from = &module.owner;
                let common = from.iter().zip(&to).take_while(|(a, b)| a == b).count();
                let node = |path: &Path| path.get(common).map_or("self".to_owned(), String::clone);
                let (a, b) = (node(from), node(&to));
                if a != b {
                    let place = format!("{}:{}: {}", module.file, reference.line, reference.path.join("::"));
                    let folder = folders.entry(to[..common].to_vec()).or_default();
                    folder.edges.entry((a, b)).or_default().push(place);
                }
            }
        }
        for (path, folder) in &mut folders {
            folder.file = self.modules[path].file.clone();
        }
        folders
    }
}

/// What a path leads to.
enum Target {
    Module(Path),
    /// An item, and the module in whose file it is defined.
    Item(Path),
}

fn parent(module: &Path) -> Path {
    module[..module.len().saturating_sub(1)].to_vec()
}

/// Where the items of a module are.
#[derive(Clone, Copy)]
struct Place<'a> {
    files: &'a Files,
    file: &'a str,
    /// Of its submodules.
    directory: &'a str,
    owner: &'a Path,
}

/// Collects the items, imports and references of one module.
struct Reader<'a> {
    module: &'a mut Module,
    /// What is re-exported: a reference too, if the module uses the name itself.
    exported: Vec<(String, Reference)>,
    words: BTreeSet<String>,
}

impl Reader<'_> {
    fn finish(self) {
        let used = self.exported.into_iter().filter(|(name, _)| self.words.contains(name));
        self.module.references.extend(used.map(|(_, reference)| reference));
    }

    fn refer(&mut self, path: Path, line: usize) {
        if path.len() > 1 {
            self.module.references.push(Reference { path, line });
        }
    }

    fn import(&mut self, tree: &UseTree, mut prefix: Path, public: bool) {
        let (name, renamed) = match tree {
            UseTree::Path(path) => {
                prefix.push(path.ident.to_string());
                return self.import(&path.tree, prefix, public);
            }
            UseTree::Group(group) => {
                return group.items.iter().for_each(|tree| self.import(tree, prefix.clone(), public));
            }
            UseTree::Glob(_) => return self.module.globs.push(prefix),
            UseTree::Name(name) => (&name.ident, &name.ident),
            UseTree::Rename(rename) => (&rename.ident, &rename.rename),
        };
        let line = name.span().start().line;
        if name != "self" {
            prefix.push(name.to_string());
        }
        let bound = if renamed == "self" { prefix.last().cloned() } else { Some(renamed.to_string()) };
        let Some(bound) = bound else { return };
        self.module.imports.insert(bound.clone(), prefix.clone());
        match public {
            true => self.exported.push((bound, Reference { path: prefix, line })),
            false => self.refer(prefix, line),
        }
    }

    /// Paths in the arguments of a macro, which need not be Rust.
    fn scan(&mut self, tokens: proc_macro2::TokenStream) {
        let mut path = Path::new();
        let mut line = 0;
        let mut colons = 0;
        for token in tokens {
            match token {
                proc_macro2::TokenTree::Ident(ident) => {
                    self.words.insert(ident.to_string());
                    if colons != 2 {
                        self.refer(std::mem::take(&mut path), line);
                        line = ident.span().start().line;
                    }
                    path.push(ident.to_string());
                    colons = 0;
                }
                proc_macro2::TokenTree::Punct(punct) if punct.as_char() == ':' => colons += 1,
                other => {
                    self.refer(std::mem::take(&mut path), line);
                    colons = 0;
                    if let proc_macro2::TokenTree::Group(group) = other {
                        self.scan(group.stream());
                    }
                }
            }
        }
        self.refer(path, line);
    }
}

impl<'ast> Visit<'ast> for Reader<'_> {
    fn visit_item(&mut self, item: &'ast Item) {
        if let Item::Mod(_) = item {
            return; // a module of its own
        }
        if let Some((attributes, name)) = describe(item) {
            if is_test(attributes) {
                return;
            }
            self.module.items.extend(name);
        }
        visit::visit_item(self, item);
    }

    fn visit_impl_item(&mut self, item: &'ast ImplItem) {
        match item {
            ImplItem::Fn(function) if is_test(&function.attrs) => {}
            _ => visit::visit_impl_item(self, item),
        }
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        if !is_test(&item.attrs) {
            self.import(&item.tree, Path::new(), !matches!(item.vis, Visibility::Inherited));
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let line = path.segments.first().map_or(0, |first| first.ident.span().start().line);
        self.refer(path.segments.iter().map(|segment| segment.ident.to_string()).collect(), line);
        visit::visit_path(self, path);
    }

    fn visit_ident(&mut self, ident: &'ast proc_macro2::Ident) {
        self.words.insert(ident.to_string());
    }

    fn visit_macro(&mut self, mac: &'ast syn::Macro) {
        self.scan(mac.tokens.clone());
    }

    fn visit_visibility(&mut self, _: &'ast Visibility) {}

    fn visit_attribute(&mut self, _: &'ast Attribute) {}
}

/// The attributes of an item, and its name.
fn describe(item: &Item) -> Option<(&[Attribute], Option<String>)> {
    let (attributes, ident) = match item {
        Item::Const(item) => (&item.attrs, Some(&item.ident)),
        Item::Enum(item) => (&item.attrs, Some(&item.ident)),
        Item::Fn(item) => (&item.attrs, Some(&item.sig.ident)),
        Item::Macro(item) => (&item.attrs, item.ident.as_ref()),
        Item::Static(item) => (&item.attrs, Some(&item.ident)),
        Item::Struct(item) => (&item.attrs, Some(&item.ident)),
        Item::Trait(item) => (&item.attrs, Some(&item.ident)),
        Item::Type(item) => (&item.attrs, Some(&item.ident)),
        Item::Union(item) => (&item.attrs, Some(&item.ident)),
        Item::Impl(item) => (&item.attrs, None),
        Item::ForeignMod(item) => (&item.attrs, None),
        _ => return None,
    };
    Some((attributes, ident.map(ToString::to_string)))
}

/// Whether something is compiled for tests only.
fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().filter(|attribute| attribute.path().is_ident("cfg")).any(|attribute| {
        let condition = attribute.meta.require_list().map(|list| list.tokens.to_string());
        condition.is_ok_and(|condition| condition == "test" || condition.starts_with("all (test"))
    })
}

/// What depends on what among the modules of one folder, with the references that say so.
#[derive(Default)]
struct Folder {
    file: String,
    edges: BTreeMap<(String, String), Vec<String>>,
}

impl Folder {
    /// A finding for each dependency that would have to go so that no circle is left: of a shortest circle, the one that the
    /// fewest references make.
    fn circles(mut self) -> Vec<String> {
        let mut findings = Vec::new();
        while let Some(circle) = self.shortest_circle() {
            let edges = circle.iter().cloned().zip(circle.iter().cycle().skip(1).cloned());
            let Some(thinnest) = edges.min_by_key(|edge| self.edges[edge].len()) else { break };
            let references = self.edges.remove(&thinnest).unwrap_or_default();
            let (from, to) = &thinnest;
            let around = [&circle[..], &circle[..1]].concat().join(" → ");
            findings.push(format!(
                "{}: circle of modules {around}, closed by {from} → {to}:\n    {}",
                self.file,
                references.join("\n    ")
            ));
        }
        findings
    }

    fn shortest_circle(&self) -> Option<Vec<String>> {
        let nodes: BTreeSet<&String> = self.edges.keys().map(|(from, _)| from).collect();
        nodes.into_iter().filter_map(|node| self.circle_through(node)).min_by_key(Vec::len)
    }

    fn circle_through<'a>(&'a self, start: &'a String) -> Option<Vec<String>> {
        let mut previous: BTreeMap<&String, &String> = BTreeMap::new();
        let mut open = VecDeque::from([start]);
        while let Some(node) = open.pop_front() {
            for (_, next) in self.edges.keys().filter(|(from, _)| from == node) {
                if next == start {
                    let back = std::iter::successors(Some(node), |node| previous.get(node).copied());
                    let mut circle: Vec<String> = back.cloned().collect();
                    circle.reverse();
                    return Some(circle);
                }
                if !previous.contains_key(next) {
                    previous.insert(next, node);
                    open.push_back(next);
                }
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::super::files::tree::{files, member, workspace};
    use super::*;

    fn findings<const N: usize>(tree: [(&str, &str); N]) -> Vec<String> {
        check(&workspace([member("a", &[])]), &files(tree))
    }

    #[test]
    fn modules_in_order_pass() {
        let found = findings([
            ("a/src/lib.rs", "pub mod low;\npub mod high;\npub use high::High;\n#[cfg(test)]\nmod tests;"),
            ("a/src/low.rs", "pub struct Low;\n#[cfg(test)]\nmod tests { use crate::high::High; }"),
            ("a/src/high/mod.rs", "mod part;\nmod other;\npub use part::High;"),
            (
                "a/src/high/part.rs",
                "use super::other::Other;\nuse crate::low;\npub struct High(low::Low, Other);",
            ),
            ("a/src/high/other.rs", "pub struct Other;"),
            ("a/src/tests.rs", "use crate::High;"),
        ]);
        assert_eq!(found, [""; 0]);
    }

    #[test]
    fn a_circle_is_found_and_the_edge_that_closes_it_is_named() {
        let found = findings([
            ("a/src/lib.rs", "mod lane;\nmod set;\nmod pair;"),
            ("a/src/lane.rs", "use crate::set::{Set, Fired};\npub struct Lane(Set, Fired);"),
            ("a/src/set.rs", "use crate::pair::*;\npub struct Set(crate::pair::Pair);\npub struct Fired;"),
            (
                "a/src/pair.rs",
                "pub struct Pair;\nfn wake() {\n    log!(\"{}\", crate::lane::Lane::number());\n}",
            ),
        ]);
        assert_eq!(
            found,
            ["a/src/lib.rs: circle of modules lane → set → pair → lane, closed by set → pair:\n    \
              a/src/set.rs:2: crate::pair::Pair"]
        );
    }

    #[test]
    fn a_folder_whose_file_uses_its_children_and_is_used_by_them_is_a_circle() {
        let found = findings([
            ("a/src/lib.rs", "mod folder;"),
            ("a/src/folder.rs", "mod child;\npub struct Parent(child::Child);"),
            ("a/src/folder/child.rs", "pub struct Child;\nimpl super::Parent {}"),
        ]);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with("a/src/folder.rs: circle of modules child → self → child"), "{found:?}");
    }

    #[test]
    fn re_exports_are_looked_through() {
        let found = findings([
            ("a/src/lib.rs", "mod one;\nmod two;\npub use one::One;\npub use two::*;"),
            ("a/src/one.rs", "use crate::Two;\npub struct One(Two);"),
            ("a/src/two.rs", "pub struct Two;\nfn name(_: super::One) {}"),
        ]);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains("circle of modules one → two → one"), "{found:?}");
    }
}
