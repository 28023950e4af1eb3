//! Prints types, generics and bounds as Rust. Our types have their public names.

use super::docs::{Docs, definition, list, text};
use serde_json::Value;
use std::cell::RefCell;
use std::collections::BTreeSet;

/// Prints the types of one crate.
pub(super) struct Types<'a> {
    pub(super) docs: &'a Docs,
    pub(super) krate: &'a Value,
    /// Our types in public signatures that are not exported.
    pub(super) nameless: &'a RefCell<BTreeSet<String>>,
}

impl Types<'_> {
    pub(super) fn ty(&self, value: &Value) -> String {
        let Some((kind, inner)) = only(value) else { return "_".to_owned() };
        match kind {
            "resolved_path" => self.path(inner),
            "generic" | "primitive" => text(inner),
            "tuple" => tuple(list(inner).map(|it| self.ty(it)).collect()),
            "slice" => format!("[{}]", self.ty(inner)),
            "array" => format!("[{}; {}]", self.ty(&inner["type"]), text(&inner["len"])),
            "borrowed_ref" => {
                let lifetime = inner["lifetime"].as_str().map_or(String::new(), |it| format!("{it} "));
                let mutable = if inner["is_mutable"] == true { "mut " } else { "" };
                format!("&{lifetime}{mutable}{}", self.ty(&inner["type"]))
            }
            "raw_pointer" => {
                let mutable = if inner["is_mutable"] == true { "mut" } else { "const" };
                format!("*{mutable} {}", self.ty(&inner["type"]))
            }
            "impl_trait" => format!("impl {}", self.bounds(inner)),
            "dyn_trait" => {
                let traits = list(&inner["traits"]).map(|it| self.path(&it["trait"]));
                let lifetime = inner["lifetime"].as_str().map(str::to_owned);
                format!("dyn {}", traits.chain(lifetime).collect::<Vec<_>>().join(" + "))
            }
            "qualified_path" => {
                format!(
                    "<{} as {}>::{}",
                    self.ty(&inner["self_type"]),
                    self.path(&inner["trait"]),
                    text(&inner["name"])
                )
            }
            "function_pointer" => format!("fn{}", self.signature(&inner["sig"])),
            other => format!("«{other}»"),
        }
    }

    /// A path with its arguments: the public name if it is ours, otherwise as in the source.
    pub(super) fn path(&self, value: &Value) -> String {
        let defined = definition(self.krate, &value["id"]).unwrap_or_default();
        let name = match self.docs.name(&defined) {
            Some(Ok(name)) => name.to_owned(),
            Some(Err(())) => {
                self.nameless.borrow_mut().insert(defined.clone());
                defined
            }
            None => as_written(&text(&value["path"])),
        };
        name + &self.arguments(&value["args"])
    }

    fn arguments(&self, value: &Value) -> String {
        let Some((kind, inner)) = only(value) else { return String::new() };
        if kind == "parenthesized" {
            let inputs: Vec<_> = list(&inner["inputs"]).map(|it| self.ty(it)).collect();
            return format!("({}){}", inputs.join(", "), self.output(&inner["output"]));
        }
        let arguments = list(&inner["args"]).filter_map(|it| {
            let (kind, inner) = only(it)?;
            Some(match kind {
                "type" => self.ty(inner),
                "const" => text(&inner["expr"]),
                _ => text(inner),
            })
        });
        let constraints = list(&inner["constraints"]).filter_map(|it| {
            let (kind, inner) = only(&it["binding"])?;
            let name = text(&it["name"]);
            Some(match kind {
                "equality" => format!("{name} = {}", self.ty(&inner["type"])),
                _ => format!("{name}: {}", self.bounds(inner)),
            })
        });
        angled(arguments.chain(constraints).collect())
    }

    pub(super) fn bounds(&self, value: &Value) -> String {
        let bounds = list(value).filter_map(|it| {
            let (kind, inner) = only(it)?;
            if kind != "trait_bound" {
                return Some(text(inner));
            }
            let optional = if inner["modifier"] == "maybe" { "?" } else { "" };
            Some(format!("{optional}{}", self.path(&inner["trait"])))
        });
        bounds.collect::<Vec<_>>().join(" + ")
    }

    /// The parameters in angle brackets, without those that `impl Trait` stands for.
    pub(super) fn parameters(&self, generics: &Value) -> String {
        let parameters = list(&generics["params"]).filter_map(|it| {
            let (kind, inner) = only(&it["kind"])?;
            let name = text(&it["name"]);
            let bounds = self.bounds(&inner["bounds"]);
            match kind {
                "type" if inner["is_synthetic"] == true => None,
                "type" if bounds.is_empty() => Some(name),
                "type" => Some(format!("{name}: {bounds}")),
                "const" => Some(format!("const {name}: {}", self.ty(&inner["type"]))),
                _ => Some(name),
            }
        });
        angled(parameters.collect())
    }

    pub(super) fn conditions(&self, generics: &Value) -> String {
        let conditions = list(&generics["where_predicates"]).filter_map(|it| {
            let (kind, inner) = only(it)?;
            (kind == "bound_predicate")
                .then(|| format!("{}: {}", self.ty(&inner["type"]), self.bounds(&inner["bounds"])))
        });
        let conditions: Vec<_> = conditions.collect();
        if conditions.is_empty() { String::new() } else { format!(" where {}", conditions.join(", ")) }
    }

    /// The arguments and the return type.
    pub(super) fn signature(&self, value: &Value) -> String {
        let inputs = list(&value["inputs"]).map(|it| {
            let (name, ty) = (text(&it[0]), self.ty(&it[1]));
            match (name.as_str(), ty.strip_suffix("Self")) {
                ("self", Some(reference)) => format!("{reference}self"),
                ("" | "_", _) => ty,
                _ => format!("{name}: {ty}"),
            }
        });
        format!("({}){}", inputs.collect::<Vec<_>>().join(", "), self.output(&value["output"]))
    }

    fn output(&self, value: &Value) -> String {
        if value.is_null() { String::new() } else { format!(" -> {}", self.ty(value)) }
    }
}

/// Shortens a path written by a macro to its last segment.
fn as_written(path: &str) -> String {
    let shown = if path.starts_with('$') { path.rsplit("::").next() } else { None };
    shown.unwrap_or(path).to_owned()
}

/// The name and value of the only field of an object, which is how rustdoc writes enum variants.
pub(super) fn only(value: &Value) -> Option<(&str, &Value)> {
    value.as_object()?.iter().next().map(|(kind, inner)| (kind.as_str(), inner))
}

fn tuple(types: Vec<String>) -> String {
    match &types[..] {
        [one] => format!("({one},)"),
        more => format!("({})", more.join(", ")),
    }
}

fn angled(arguments: Vec<String>) -> String {
    if arguments.is_empty() { String::new() } else { format!("<{}>", arguments.join(", ")) }
}
