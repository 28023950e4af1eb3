//! Prints public items as lines of text: an item at the margin, its members below, each with its signature.
//! Each line of a diff can then be read alone, and its hunk header names the item.

use super::docs::{Docs, Item, list};
use super::types::{Types, only};
use crate::shell::Result;
use serde_json::Value;
use std::cell::RefCell;
use std::collections::BTreeSet;

const HEAD: &str = "\
# Every public item of the crate `ironwarp`, with its signature. `cargo xtask api` compares it with the source, and
# `cargo xtask api --update` writes it. Types of other crates are named as the source names them.
";

/// Traits that are not listed.
const UNSAID: &[&str] =
    &["Drop", "Freeze", "RefUnwindSafe", "StructuralPartialEq", "Unpin", "UnsafeUnpin", "UnwindSafe"];

/// Returns all public items as text, and our types in them that are not exported.
pub(super) fn all(docs: &Docs) -> Result<(String, BTreeSet<String>)> {
    let nameless = RefCell::default();
    let mut out = HEAD.to_owned();
    for (name, item) in docs.public()? {
        let writer = Writer { types: Types { docs, krate: item.krate, nameless: &nameless }, item };
        out += &format!("\n{}{}\n", attributes(item.value), writer.head(&name)?);
        for line in writer.body()? {
            out += &format!("    {line}\n");
        }
    }
    Ok((out, nameless.into_inner()))
}

/// Prints one item.
struct Writer<'a> {
    types: Types<'a>,
    item: Item<'a>,
}

impl Writer<'_> {
    fn head(&self, name: &str) -> Result<String> {
        let inner = self.item.inner();
        let generics =
            || (self.types.parameters(&inner["generics"]), self.types.conditions(&inner["generics"]));
        Ok(match self.item.kind() {
            kind @ ("struct" | "enum" | "union") => {
                let (parameters, conditions) = generics();
                format!("pub {kind} {name}{parameters}{}{conditions}", self.tuple(&inner["kind"]["tuple"]))
            }
            "trait" => {
                let (parameters, conditions) = generics();
                let bounds = self.types.bounds(&inner["bounds"]);
                let bounds = if bounds.is_empty() { bounds } else { format!(": {bounds}") };
                format!("pub trait {name}{parameters}{bounds}{conditions}")
            }
            "type_alias" => format!("pub type {name} = {}", self.types.ty(&inner["type"])),
            _ => format!("pub {}", self.member(self.item, name)?),
        })
    }

    fn body(&self) -> Result<Vec<String>> {
        let inner = self.item.inner();
        let fields = self.item.items(&inner["kind"]["plain"]["fields"]);
        let mut lines: Vec<String> = fields.map(|it| format!("pub {}", self.field(it))).collect();
        if inner["kind"]["plain"]["has_stripped_fields"] == true && !lines.is_empty() {
            lines.push("..".to_owned());
        }
        lines.extend(self.item.items(&inner["variants"]).map(|it| self.variant(it)));
        let mut members: Vec<Item<'_>> = self.item.members().collect();
        members.extend(self.item.items(&inner["items"]));
        // Constants come first, then functions.
        members.sort_by_key(|it| (it.kind(), it.name()));
        let public = if self.item.kind() == "trait" { "" } else { "pub " };
        for member in members {
            let signature = self.member(member, member.name())?;
            lines.push(format!("{}{public}{signature}", attributes(member.value)));
        }
        lines.extend(self.traits());
        Ok(lines)
    }

    fn member(&self, item: Item<'_>, name: &str) -> Result<String> {
        let inner = item.inner();
        Ok(match item.kind() {
            "function" => {
                let header = &inner["header"];
                let words = [("is_const", "const "), ("is_async", "async "), ("is_unsafe", "unsafe ")];
                let words: String =
                    words.iter().filter(|(it, _)| header[it] == true).map(|(_, word)| *word).collect();
                let (parameters, conditions) =
                    (self.types.parameters(&inner["generics"]), self.types.conditions(&inner["generics"]));
                format!("{words}fn {name}{parameters}{}{conditions}", self.types.signature(&inner["sig"]))
            }
            "assoc_const" | "constant" => format!("const {name}: {}", self.types.ty(&inner["type"])),
            "assoc_type" => format!("type {name}"),
            "static" => format!("static {name}: {}", self.types.ty(&inner["type"])),
            kind => {
                return Err(format!(
                    "`{name}` is a {kind}, which xtask/src/api/render.rs does not support yet"
                ));
            }
        })
    }

    fn variant(&self, item: Item<'_>) -> String {
        let kind = &item.inner()["kind"];
        let fields: Vec<String> = item.items(&kind["struct"]["fields"]).map(|it| self.field(it)).collect();
        let fields = if fields.is_empty() { String::new() } else { format!(" {{ {} }}", fields.join(", ")) };
        format!("{}{}{}{fields}", attributes(item.value), item.name(), self.tuple(&kind["tuple"]))
    }

    fn field(&self, item: Item<'_>) -> String {
        format!("{}: {}", item.name(), self.types.ty(item.inner()))
    }

    /// The fields of a tuple; `_` for one that is private.
    fn tuple(&self, fields: &Value) -> String {
        if fields.is_null() {
            return String::new();
        }
        let fields =
            list(fields).map(|id| self.item.item(id).map_or("_".to_owned(), |it| self.types.ty(it.inner())));
        format!("({})", fields.collect::<Vec<_>>().join(", "))
    }

    /// The implemented traits: on one line, except those with arguments, associated types or conditions.
    fn traits(&self) -> Vec<String> {
        let (mut plain, mut more) = (BTreeSet::new(), BTreeSet::new());
        for item in self.item.impls().filter(|it| !it.inner()["trait"].is_null()) {
            let inner = item.inner();
            let not = if inner["is_negative"] == true { "!" } else { "" };
            let name = self.types.path(&inner["trait"]);
            let named = item.items(&inner["items"]).filter(|it| it.kind() == "assoc_type");
            let named: Vec<_> =
                named.map(|it| format!("{} = {}", it.name(), self.types.ty(&it.inner()["type"]))).collect();
            let conditions = self.types.conditions(&inner["generics"]);
            if UNSAID.contains(&name.as_str()) {
            } else if named.is_empty() && conditions.is_empty() && !name.contains('<') {
                plain.insert(format!("{not}{name}"));
            } else {
                let named = if named.is_empty() { String::new() } else { format!(" ({})", named.join(", ")) };
                more.insert(format!("impl {not}{name}{named}{conditions}"));
            }
        }
        let plain = Vec::from_iter(plain);
        let plain = (!plain.is_empty()).then(|| format!("impl {}", plain.join(" + ")));
        plain.into_iter().chain(more).collect()
    }
}

fn attributes(item: &Value) -> String {
    let known =
        list(&item["attrs"]).filter_map(|it| match it.as_str().or(only(it).map(|(kind, _)| kind))? {
            kind @ ("non_exhaustive" | "must_use") => Some(format!("#[{kind}] ")),
            _ => None,
        });
    let deprecated = (!item["deprecation"].is_null()).then(|| "#[deprecated] ".to_owned());
    known.chain(deprecated).collect()
}
