//! Rules for public items: functions have an example that runs; types are `Debug`, `Send` and `Sync`; errors
//! are non-exhaustive.

use super::docs::{Docs, Item, list};
use super::types::only;
use crate::shell::Result;
use serde_json::Value;

/// Returns violations as `ITEM: violation`.
pub(super) fn check(docs: &Docs) -> Result<Vec<String>> {
    let mut findings = Vec::new();
    for (name, item) in docs.public()? {
        findings.extend(lacks_traits(item).map(|what| format!("{name}: {what}")));
        let members: Vec<Item<'_>> = item.members().chain(item.items(&item.inner()["items"])).collect();
        for function in members.into_iter().filter(|it| it.kind() == "function" && !is_shown(item, *it)) {
            findings.push(format!("{name}::{}: has no example that runs", function.name()));
        }
        if item.kind() == "function" && !is_shown(item, item) {
            findings.push(format!("{name}: has no example that runs"));
        }
    }
    Ok(findings)
}

fn lacks_traits(item: Item<'_>) -> impl Iterator<Item = String> {
    let implements = |name: &str| item.impls().any(|it| is_impl_of(it, name));
    let is_type = ["struct", "enum", "union"].contains(&item.kind());
    let missing = ["Debug", "Send", "Sync"].into_iter().filter(|name| is_type && !implements(name));
    let rigid = item.kind() == "enum"
        && implements("Error")
        && !list(&item.value["attrs"]).any(|it| it == "non_exhaustive");
    let rigid = rigid.then(|| "is an exhaustive error: make it #[non_exhaustive]".to_owned());
    missing.map(|name| format!("is not {name}")).chain(rigid).collect::<Vec<_>>().into_iter()
}

fn is_impl_of(item: Item<'_>, name: &str) -> bool {
    let inner = item.inner();
    let path = inner["trait"]["path"].as_str().unwrap_or_default();
    inner["is_negative"] != true && path.rsplit("::").next() == Some(name)
}

/// Whether a function has an example. These need none of their own:
/// - getters, which take only `self` and return a value of another type;
/// - functions without arguments that return `Self`, because other examples begin with them;
/// - builder methods, which take `self` and return `Self`, if the example of the type calls them;
/// - functions written by a macro.
fn is_shown(of: Item<'_>, function: Item<'_>) -> bool {
    let name = function.name();
    let called =
        [".", "::"].map(|before| [format!("{before}{name}("), format!("{before}{name}::<")]).concat();
    let calls =
        |it: Item<'_>| running(it.docs_text()).any(|line| called.iter().any(|call| line.contains(call)));
    let signature = &function.inner()["sig"];
    let inputs = list(&signature["inputs"]).count();
    let gives_self = signature["output"]["generic"] == "Self";
    let path = signature["output"]["resolved_path"]["path"].as_str().unwrap_or_default();
    let gives_value = !signature["output"].is_null() && !path.ends_with("Result");
    let by_macro = of.kind() != "function" && function.value["span"] == of.value["span"];
    by_macro
        || match receiver(signature) {
            Receiver::Shared | Receiver::Value if inputs == 1 && gives_value && !gives_self => true,
            Receiver::None if inputs == 0 && gives_self => true,
            Receiver::Value if gives_self => calls(function) || calls(of),
            _ => calls(function),
        }
}

enum Receiver {
    None,
    /// `&self`
    Shared,
    /// `self`
    Value,
    Other,
}

fn receiver(signature: &Value) -> Receiver {
    let first = &signature["inputs"][0];
    match only(&first[1]) {
        _ if first[0] != "self" => Receiver::None,
        Some(("borrowed_ref", inner)) if inner["is_mutable"] != true => Receiver::Shared,
        Some(("generic", _)) => Receiver::Value,
        _ => Receiver::Other,
    }
}

/// The lines of the code blocks that are compiled and run.
fn running(docs: &str) -> impl Iterator<Item = &str> {
    let mut block = None;
    docs.lines().filter(move |line| {
        let fence = line.trim_start().strip_prefix("```");
        match (fence, block) {
            (Some(words), None) => block = Some(words.split(',').all(|word| matches!(word, "" | "rust"))),
            (Some(_), Some(_)) => block = None,
            (None, _) => {}
        }
        fence.is_none() && block == Some(true)
    })
}

#[cfg(test)]
mod tests {
    use super::super::{docs::Docs, render};
    use super::*;
    use serde_json::json;

    /// A crate with one struct, `inner::Thing`, that is public as `Thing`, and one method of it.
    fn docs(struct_docs: &str, method: &Value) -> Docs {
        let item = |id: u32, name: &str, inner: Value| {
            json!({ "id": id, "name": name, "docs": "", "attrs": [], "visibility": "public", "deprecation": null,
                "span": id, "inner": inner })
        };
        let thing = json!({ "resolved_path": { "path": "Thing", "id": 2, "args": null } });
        let implementation = |trait_: Value, items: Value| {
            json!({ "impl": { "trait": trait_, "for": thing, "items": items, "blanket_impl": null,
                "is_negative": false, "generics": { "params": [], "where_predicates": [] } } })
        };
        let marker = |name: &str| json!({ "path": name, "id": 90, "args": null });
        let kind = json!({ "plain": { "fields": [8], "has_stripped_fields": true } });
        let mut index = json!({
            "0": item(0, "ours", json!({ "module": { "items": [1] } })),
            "1": item(1, "", json!({ "use": { "source": "inner::Thing", "name": "Thing", "id": 2, "is_glob": false } })),
            "2": item(2, "Thing", json!({ "struct": { "kind": kind, "impls": [3, 4, 5],
                "generics": { "params": [], "where_predicates": [] } } })),
            "3": item(3, "", implementation(Value::Null, json!([7]))),
            "4": item(4, "", implementation(marker("Send"), json!([]))),
            "5": item(5, "", implementation(marker("Debug"), json!([]))),
            "8": item(8, "size", json!({ "struct_field": { "array": { "type": { "primitive": "u8" }, "len": "4" } } })),
        });
        index["2"]["docs"] = json!(struct_docs);
        index["7"] = method.clone();
        let paths = json!({ "2": { "crate_id": 0, "path": ["ours", "inner", "Thing"], "kind": "struct" } });
        Docs::new(vec![json!({ "format_version": 57, "root": 0, "index": index, "paths": paths })]).unwrap()
    }

    fn method(docs: &str, inputs: &Value, output: &Value) -> Value {
        json!({ "id": 7, "name": "turn", "docs": docs, "attrs": ["non_exhaustive", { "must_use": { "reason": null } }],
            "visibility": "public", "deprecation": null, "span": 7, "inner": { "function": {
                "sig": { "inputs": inputs, "output": output }, "header": { "is_const": true },
                "generics": { "params": [], "where_predicates": [] } } } })
    }

    fn by_value() -> Value {
        json!(["self", { "generic": "Self" }])
    }

    fn by_reference() -> Value {
        json!(["self", { "borrowed_ref": { "lifetime": null, "is_mutable": false, "type": { "generic": "Self" } } }])
    }

    #[test]
    fn an_item_is_written_as_rust_writes_it() {
        let thing = json!({ "resolved_path": { "path": "Inner", "id": 2, "args": null } });
        let bytes = json!(["bytes", { "borrowed_ref": { "lifetime": "'a", "is_mutable": true,
            "type": { "slice": { "primitive": "u8" } } } }]);
        let docs = docs("", &method("", &json!([by_reference(), bytes]), &json!({ "tuple": [thing] })));
        let (text, nameless) = render::all(&docs).unwrap();
        let lines: Vec<&str> =
            text.lines().skip_while(|line| line.starts_with('#') || line.is_empty()).collect();
        assert_eq!(
            lines,
            [
                "pub struct Thing",
                "    pub size: [u8; 4]",
                "    ..",
                "    #[non_exhaustive] #[must_use] pub const fn turn(&self, bytes: &'a mut [u8]) -> (Thing,)",
                "    impl Debug + Send",
            ]
        );
        assert!(nameless.is_empty());
    }

    #[test]
    fn functions_without_an_example_and_types_without_traits_are_found() {
        let no_sync = "Thing: is not Sync";
        let bare = "Thing::turn: has no example that runs";
        let (unit, own) = (Value::Null, json!({ "generic": "Self" }));
        let found = |of: &str, method: &Value| check(&docs(of, method)).unwrap();
        let call = |fence: &str| format!("Says:\n{fence}\nthing.turn();\n```\n");
        assert_eq!(found("", &method("", &json!([by_reference()]), &unit)), [no_sync, bare]);
        assert_eq!(found("", &method(&call("```ignore"), &json!([by_reference()]), &unit)), [no_sync, bare]);
        assert_eq!(found("", &method(&call("```"), &json!([by_reference()]), &unit)), [no_sync]);
        let typed = call("```").replace("turn(", "turn::<u8>(");
        assert_eq!(found("", &method(&typed, &json!([by_reference()]), &unit)), [no_sync]);
        // A getter, and a step of a builder.
        let number = json!({ "primitive": "u32" });
        assert_eq!(found("", &method("", &json!([by_reference()]), &number)), [no_sync]);
        assert_eq!(found("", &method("", &json!([by_value()]), &own)), [no_sync, bare]);
        assert_eq!(found(&call("```"), &method("", &json!([by_value()]), &own)), [no_sync]);
    }
}
