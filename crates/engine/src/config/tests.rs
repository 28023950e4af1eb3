//! Settings from and to text, and the page that lists them.

use super::*;

/// Returns the settings and the errors for these environment variables.
fn with(variables: &[(&str, &str)]) -> (Config, Vec<ConfigError>) {
    Config::from_variables(variables.iter().map(|(name, value)| (name.into(), value.into())))
}

/// Returns the texts of errors.
fn messages(errors: &[ConfigError]) -> Vec<String> {
    errors.iter().map(ToString::to_string).collect()
}

#[test]
fn every_setting_round_trips_as_text() {
    let mut config = Config::default();
    for Setting { name, description, .. } in Config::SETTINGS {
        let text = config.get(name).expect("every listed setting has a value");
        config.set(name, &text).expect("the text of a value is valid");
        assert!(!description.trim().is_empty());
    }
    assert_eq!(config, Config::default());
}

#[test]
fn environment_variables_change_settings() {
    let variables =
        [("IRONWARP_CRC", "off"), ("IRONWARP_CLOSE", "250ms"), ("IRONWARP_IRD", "7"), ("HOME", "/")];
    let expected = Config::default().crc(false).close(Duration::from_millis(250)).ird(7);
    assert_eq!(with(&variables), (expected, Vec::new()));
}

#[test]
fn errors_suggest_what_was_meant() {
    let (config, errors) = with(&[("IRONWARP_LANE", "2"), ("IRONWARP_CLOSE", "5"), ("IRONWARP_CRC", "off")]);
    assert_eq!(
        messages(&errors),
        [
            "unknown setting `lane` (IRONWARP_LANE), the closest is `lanes`",
            "invalid value `5` for the setting `close`: expected a duration such as `5s` or `200ms`",
        ]
    );
    assert_eq!(config, Config::default().crc(false), "valid settings apply");
}

/// Keys are never shown, not even in errors.
#[test]
fn keys_are_not_shown() {
    let (config, errors) = with(&[("IRONWARP_KEY", "correct horse battery staple")]);
    assert_eq!((config.key.bytes(), errors), (Some(&b"correct horse battery staple"[..]), vec![]));
    let shown = format!("{config:?} {:?}", config.get("key"));
    assert!(shown.contains("ClusterKey(..)") && !shown.contains("horse"), "{shown}");
    let (config, errors) = with(&[("IRONWARP_KEY", "staple")]);
    assert_eq!(config.key.bytes(), None);
    let [error] = &messages(&errors)[..] else { panic!("{errors:?}") };
    assert!(error.contains("key too short: 6 bytes") && !error.contains("staple"), "{error}");
}

#[test]
fn users_are_ids_or_any() {
    let users = |text: &str| text.parse::<Users>();
    assert_eq!(users("7, 8"), Ok(Users::Listed(vec![7, 8])));
    assert_eq!(users("7,nobody"), Err(InvalidUsers));
    assert_eq!((users("any").unwrap().accept(1, 2), users("").unwrap().accept(1, 2)), (true, false));
    assert!(users("7").unwrap().accept(1, 1) && users("7").unwrap().accept(1, 7));
    assert!(!users("7").unwrap().accept(1, 8));
}

/// Environment variables may contain arbitrary bytes.
#[test]
fn variables_need_not_be_utf8() {
    use std::os::unix::ffi::OsStringExt;
    let bytes = |text: &[u8]| OsString::from_vec(text.to_vec());
    let (config, errors) = Config::from_variables(
        [
            (bytes(b"HOME\xff"), bytes(b"\xff")),
            (bytes(b"IRONWARP_CRC"), bytes(b"o\xff")),
            (bytes(b"IRONWARP_LANES\xff"), bytes(b"1")),
        ]
        .into_iter(),
    );
    assert_eq!(config, Config::default());
    let [value, name] = &messages(&errors)[..] else { panic!("{errors:?}") };
    assert_eq!(value, "invalid value `o\u{fffd}` for the setting `crc`: expected UTF-8 text");
    assert!(name.ends_with("the closest is `lanes`"), "{name}");
}

const PAGE_START: &str = "\
# Settings

Each setting is a field of `Config`, with a method of the same name that changes it, and an environment variable.

Each has a label that says what later releases may change:

- **stable**: the name, the values and their meaning stay until the next major release. The default may change in a minor release, and
  [CHANGELOG.md](../CHANGELOG.md) says so.
- **experimental**: any release may change, rename or remove the setting. The drop-in and `ironwarp run` ignore
  a variable that no setting has, with a warning; `Config::from_env` returns an error.

`ironwarp run --faults` picks a random seed unless `--seed` or `IRONWARP_SEED` sets one; everywhere else it is 0 by default.

| variable | default | label | description |
|---|---|---|---|
";

/// The page derives from the tables. Print it with `cargo test -p ironwarp-engine settings_page`.
#[test]
fn settings_page_is_up_to_date() {
    let default = Config::default();
    let mut page = PAGE_START.to_owned();
    for Setting { name, description, stability } in Config::SETTINGS {
        let value = default.get(name).unwrap_or_default();
        let value = if value.is_empty() { "none".to_owned() } else { format!("`{value}`") };
        let variable = name.to_uppercase();
        page += &format!("| `IRONWARP_{variable}` | {value} | {stability} | {} |\n", description.trim());
    }
    let found = include_str!("../../../../docs/settings.md");
    assert!(found == page, "docs/settings.md should be:\n{page}");
}
