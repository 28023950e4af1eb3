//! rustdoc's JSON of several crates, and how to follow references between items, across crates.

use crate::shell::{Result, at};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// The supported version of rustdoc's JSON, which Rust 1.93 to 1.95 write.
const FORMAT: u64 = 57;

/// The documentation of some crates. The first is the one whose public items are listed.
pub(super) struct Docs {
    crates: Vec<Value>,
    /// Names of public items in the first crate, by the path of their definition.
    names: BTreeMap<String, String>,
}

/// An item, and the crate that its identifiers belong to.
#[derive(Clone, Copy)]
pub(super) struct Item<'a> {
    pub(super) docs: &'a Docs,
    pub(super) krate: &'a Value,
    pub(super) value: &'a Value,
}

impl Docs {
    pub(super) fn load(directory: &Path, names: &[&str]) -> Result<Self> {
        let crates = names.iter().map(|name| {
            let path = directory.join(format!("{}.json", name.replace('-', "_")));
            let text = fs::read_to_string(&path).map_err(at(&path))?;
            serde_json::from_str(&text).map_err(|error| format!("{}: {error}", path.display()))
        });
        Self::new(crates.collect::<Result<_>>()?)
    }

    pub(super) fn new(crates: Vec<Value>) -> Result<Self> {
        for krate in &crates {
            let format = krate["format_version"].as_u64();
            if format != Some(FORMAT) {
                let found = format.map_or("none".to_owned(), |format| format.to_string());
                return Err(format!(
                    "unsupported version {found} of rustdoc's JSON, xtask/src/api reads {FORMAT}: adapt it to the toolchain"
                ));
            }
        }
        let mut docs = Self { crates, names: BTreeMap::new() };
        let names: Result<BTreeMap<_, _>> = docs
            .public()?
            .into_iter()
            .map(|(name, item)| Ok((definition(item.krate, &item.value["id"]).unwrap_or_default(), name)))
            .collect();
        docs.names = names?;
        Ok(docs)
    }

    /// Returns the public items of the first crate with their names, without items that belong to another
    /// one.
    pub(super) fn public(&self) -> Result<Vec<(String, Item<'_>)>> {
        let krate = &self.crates[0];
        let root = Item { docs: self, krate, value: &krate["index"][key(&krate["root"])] };
        let mut found = Vec::new();
        self.walk(root, "", &mut found)?;
        found.sort_by(|(one, _), (other, _)| one.cmp(other));
        Ok(found)
    }

    fn walk<'a>(&'a self, module: Item<'a>, prefix: &str, found: &mut Vec<(String, Item<'a>)>) -> Result {
        for id in list(&module.value["inner"]["module"]["items"]) {
            let Some(mut item) = module.item(id) else { continue };
            let mut name = text(&item.value["name"]);
            if item.kind() == "use" {
                let used = &item.value["inner"]["use"];
                name = text(&used["name"]);
                if used["is_glob"] == true {
                    return Err(format!("`pub use {}::*`: name each public item", text(&used["source"])));
                }
                item = module
                    .item(&used["id"])
                    .ok_or_else(|| format!("`pub use {}`: not in one of the known crates", used["source"]))?;
            }
            if item.kind() == "module" {
                self.walk(item, &format!("{prefix}{name}::"), found)?;
            } else {
                found.push((format!("{prefix}{name}"), item));
            }
        }
        Ok(())
    }

    /// The public name of what is defined at a path: `None` if it belongs to none of the crates, `Err` if it
    /// is not public.
    pub(super) fn name(&self, path: &str) -> Option<std::result::Result<&str, ()>> {
        let of = path.split("::").next().unwrap_or_default();
        let ours = self.crates.iter().any(|krate| crate_name(krate) == of);
        ours.then(|| self.names.get(path).map(String::as_str).ok_or(()))
    }
}

impl<'a> Item<'a> {
    /// The kind of the item, in rustdoc's words.
    pub(super) fn kind(&self) -> &'a str {
        let inner = self.value["inner"].as_object();
        inner.and_then(|inner| inner.keys().next()).map_or("", String::as_str)
    }

    pub(super) fn inner(&self) -> &'a Value {
        &self.value["inner"][self.kind()]
    }

    pub(super) fn name(&self) -> &'a str {
        self.value["name"].as_str().unwrap_or_default()
    }

    pub(super) fn docs_text(&self) -> &'a str {
        self.value["docs"].as_str().unwrap_or_default()
    }

    /// The item with an identifier, in whichever crate it is.
    pub(super) fn item(&self, id: &Value) -> Option<Self> {
        if let Some(value) = self.krate["index"].get(key(id)) {
            return Some(Self { value, ..*self });
        }
        let summary = &self.krate["paths"][key(id)];
        let krate = self.docs.crates.iter().find(|it| crate_name(it) == text(&summary["path"][0]))?;
        let (id, _) = krate["paths"].as_object()?.iter().find(|(_, other)| {
            other["crate_id"] == 0 && other["path"] == summary["path"] && other["kind"] == summary["kind"]
        })?;
        Some(Self { docs: self.docs, krate, value: krate["index"].get(id)? })
    }

    pub(super) fn items(&self, ids: &'a Value) -> impl Iterator<Item = Self> {
        list(ids).filter_map(move |id| self.item(id))
    }

    /// The implementations of a type, without blanket implementations. rustdoc also lists implementations for
    /// other types that only mention this one.
    pub(super) fn impls(&self) -> impl Iterator<Item = Self> {
        let own = |it: &Self| it.inner()["for"]["resolved_path"]["id"] == self.value["id"];
        self.items(&self.inner()["impls"]).filter(move |it| it.inner()["blanket_impl"].is_null() && own(it))
    }

    /// Functions and constants of a type's inherent implementations.
    pub(super) fn members(&self) -> impl Iterator<Item = Self> {
        let own = self.impls().filter(|it| it.inner()["trait"].is_null());
        own.flat_map(|it| it.items(&it.inner()["items"]).collect::<Vec<_>>())
            .filter(|it| it.value["visibility"] == "public")
    }
}

/// The path of a definition, which may lead through private modules.
pub(super) fn definition(krate: &Value, id: &Value) -> Option<String> {
    let path: Vec<String> = list(&krate["paths"].get(key(id))?["path"]).map(text).collect();
    Some(path.join("::"))
}

fn crate_name(krate: &Value) -> String {
    text(&krate["index"][key(&krate["root"])]["name"])
}

fn key(id: &Value) -> String {
    id.to_string()
}

pub(super) fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

pub(super) fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}
