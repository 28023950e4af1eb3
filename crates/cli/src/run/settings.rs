//! Converts the options of `run` to environment variables, which the library reads, and checks the variables that are
//! already set.

use super::options::Options;
use crate::say::Failure;
use ironwarp_engine::config::{Check, Config, ConfigError, Devices, PREFIX};
use ironwarp_engine::logical;
use std::ffi::{OsStr, OsString};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::path::Path;

/// Changes to the environment, and notices about them.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Settings {
    /// Variables to set.
    pub(super) set: Vec<(String, OsString)>,
    /// Unknown variables to remove. They are reported here, so that the library does not report them again.
    pub(super) removed: Vec<OsString>,
    /// Notices for the user.
    pub(super) notices: Vec<String>,
    /// Whether the program is checked for mistakes.
    pub(super) checks: bool,
}

impl Settings {
    /// Converts the options, and checks the environment variables. Fails if a variable or the port plan is
    /// invalid, or if the capture file cannot be created.
    pub(super) fn new(
        options: &Options,
        variables: impl Iterator<Item = (OsString, OsString)>,
    ) -> Result<Self, Failure> {
        let mut settings = Self::default();
        let ours: Vec<_> = variables.filter(|(name, _)| is_ours(name)).collect();
        let mut config = Config::default();
        for (name, value) in &ours {
            settings.check_variable(&mut config, name, value, options)?;
        }
        settings.convert_options(options, &mut config);
        if let Some(plan) = &options.port_plan {
            config.set("port_plan", plan)?;
            settings.set("port_plan", plan);
        }
        settings.check_devices(&config)?;
        if let Some(path) = &options.pcap {
            settings.set("pcap", create_capture(path)?);
        }
        settings.checks = config.check != Check::Off;
        let has_faults = config.faults != Config::default().faults;
        // Logical devices may have faults of their own, which use the seed as well.
        let seed_is_unused = options.seed.is_some() && config.devices == Devices::default();
        if has_faults || seed_is_unused {
            settings.report_seed(&config, has_faults);
        }
        if let Some(seed) = config.adversary.0 {
            let notice = format!("adversary with seed {seed}; reproduce with --adversary {seed}");
            settings.notices.push(notice);
        }
        Ok(settings)
    }

    /// Checks the logical devices and the plan of their ports, before the program starts. Not for the default ones, which
    /// are always valid.
    fn check_devices(&mut self, config: &Config) -> Result<(), Failure> {
        let default = Config::default();
        if config.devices == default.devices && config.port_plan == default.port_plan {
            return Ok(());
        }
        let unusable = logical::check(config).map_err(|error| error.to_string())?;
        for device in unusable {
            let devices = &config.devices;
            self.notices.push(format!(
                "device {device} has no address: `ironwarp devices --devices '{devices}'` says why"
            ));
        }
        Ok(())
    }

    /// Applies a variable of the environment to `config`. An unknown name is only reported. An invalid value is an
    /// error, unless an option overrides it, because the program would run with other settings than requested.
    fn check_variable(
        &mut self,
        config: &mut Config,
        name: &OsStr,
        value: &OsStr,
        options: &Options,
    ) -> Result<(), Failure> {
        let setting = name.to_string_lossy()[PREFIX.len()..].to_lowercase();
        match config.set(&setting, &value.to_string_lossy()) {
            Err(error @ ConfigError::Unknown { .. }) => {
                self.notices.push(format!("{error}; ignored"));
                self.removed.push(name.to_owned());
            }
            Err(error) if !options.sets(&setting) => return Err(error.into()),
            _ => {}
        }
        Ok(())
    }

    /// Converts the options except the port plan and the capture file, and applies devices, faults and seed to `config`.
    fn convert_options(&mut self, options: &Options, config: &mut Config) {
        if let Some(name) = &options.name {
            self.set("name", name.as_str());
        }
        if let Some(persona) = options.persona {
            self.set("persona", persona.as_str());
        }
        if let Some(devices) = &options.devices {
            config.devices = devices.clone();
            self.set("devices", devices.to_string());
        }
        if let Some(level) = options.log {
            self.set("log", level.as_str());
        }
        if let Some(check) = options.check {
            config.check = check;
            self.set("check", check.as_str());
        }
        if options.poison {
            self.set("check_poison", "on");
        }
        if let Some(path) = &options.check_json {
            self.set("check_json", absolute(path));
        }
        if let Some(path) = &options.suppressions {
            self.set("check_suppressions", absolute(path));
        }
        if let Some(faults) = options.faults {
            config.faults = faults;
            self.set("faults", faults.to_string());
        }
        if let Some(seed) = options.adversary {
            config.adversary = seed.into();
            self.set("adversary", seed.to_string());
        }
        if let Some(seed) = options.seed.or_else(|| options.faults.map(|_| seed_of(config))) {
            config.seed = seed;
            self.set("seed", seed.to_string());
        }
    }

    /// Adds a variable to set.
    fn set(&mut self, setting: &str, value: impl Into<OsString>) {
        self.set.push((format!("{}{}", PREFIX, setting.to_uppercase()), value.into()));
    }

    /// Adds a notice about the seed: how to reproduce the faults, or that the seed has no effect.
    fn report_seed(&mut self, config: &Config, has_faults: bool) {
        let seed = config.seed;
        self.notices.push(match has_faults {
            true => {
                format!("injecting faults {} with seed {seed}; reproduce with --seed {seed}", config.faults)
            }
            false => format!("seed {seed} has no effect without --faults"),
        });
    }
}

/// Returns whether a variable is a setting of Ironwarp.
fn is_ours(name: &OsStr) -> bool {
    name.as_encoded_bytes().starts_with(PREFIX.as_bytes())
}

/// Returns the seed that is set, or a random one that is short enough to type.
fn seed_of(config: &Config) -> u64 {
    match config.seed {
        0 => 1 + RandomState::new().build_hasher().finish() % 999_999,
        seed => seed,
    }
}

/// Returns the absolute path of a file: child processes may run in other directories.
fn absolute(path: &Path) -> OsString {
    std::path::absolute(path).map_or_else(|_| path.into(), Into::into)
}

/// Creates or truncates the capture file, to which the program and its child processes append. Returns its absolute
/// path.
fn create_capture(path: &Path) -> Result<OsString, Failure> {
    let describe = |error| format!("failed to create the capture {}: {error}", path.display());
    ironwarp_engine::sys::shared_file::create_empty(path).map_err(describe)?;
    Ok(std::path::absolute(path).map_err(describe)?.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use ironwarp_engine::config::{LogLevel, Persona};

    fn settings(options: &Options, variables: &[(&str, &str)]) -> Result<Settings, String> {
        let variables = variables.iter().map(|(name, value)| (name.into(), value.into()));
        Settings::new(options, variables).map_err(|error| error.to_string())
    }

    fn set(settings: &Settings) -> Vec<String> {
        settings.set.iter().map(|(name, value)| format!("{name}={}", value.to_string_lossy())).collect()
    }

    #[test]
    fn options_become_variables() {
        let options = Options {
            name: Some("mlx5_0".parse().unwrap()),
            persona: Some(Persona::Iwarp),
            devices: Some("8 rate=1g".parse().unwrap()),
            port_plan: None,
            log: Some(LogLevel::Debug),
            faults: Some("cut@0.5".parse().unwrap()),
            seed: Some(7),
            check: Some(Check::Irdma),
            poison: true,
            check_json: Some("/a/b.json".into()),
            suppressions: None,
            adversary: Some(5),
            pcap: None,
        };
        let settings = settings(&options, &[("IRONWARP_PERSONA", "roce"), ("HOME", "/")]).unwrap();
        assert_eq!(
            set(&settings),
            [
                "IRONWARP_NAME=mlx5_0",
                "IRONWARP_PERSONA=iwarp",
                "IRONWARP_DEVICES=8 rate=1g",
                "IRONWARP_LOG=debug",
                "IRONWARP_CHECK=irdma",
                "IRONWARP_CHECK_POISON=on",
                "IRONWARP_CHECK_JSON=/a/b.json",
                "IRONWARP_FAULTS=cut@0.5",
                "IRONWARP_ADVERSARY=5",
                "IRONWARP_SEED=7"
            ]
        );
        assert!(settings.checks);
        let notices = [
            "injecting faults cut@0.5 with seed 7; reproduce with --seed 7",
            "adversary with seed 5; reproduce with --adversary 5",
        ];
        assert_eq!(settings.notices, notices);
    }

    #[test]
    fn no_options_change_nothing() {
        assert_eq!(settings(&Options::default(), &[("HOME", "/")]), Ok(Settings::default()));
    }

    #[test]
    fn a_seed_is_chosen_and_reported_if_there_are_faults() {
        let options = Options { faults: Some("cut@0.5".parse().unwrap()), ..Options::default() };
        let chosen = || {
            let settings = settings(&options, &[]).unwrap();
            let [_, seed] = &set(&settings)[..] else { panic!("{settings:?}") };
            let seed: u64 = seed.strip_prefix("IRONWARP_SEED=").unwrap().parse().unwrap();
            assert!(settings.notices[0].contains(&format!(" with seed {seed}; ")), "{settings:?}");
            seed
        };
        assert!((0..10).map(|_| chosen()).any(|seed| seed != chosen()), "always the same seed");
        let settings = settings(&options, &[("IRONWARP_SEED", "9")]).unwrap();
        assert_eq!(set(&settings)[1], "IRONWARP_SEED=9");
    }

    #[test]
    fn faults_and_seeds_of_the_environment_are_reported_too() {
        let none = Options::default();
        let faults = settings(&none, &[("IRONWARP_FAULTS", "cut@1"), ("IRONWARP_SEED", "3")]).unwrap();
        assert_eq!(faults.notices, ["injecting faults cut@1 with seed 3; reproduce with --seed 3"]);
        assert_eq!(set(&faults), [""; 0]);
        let seed = settings(&Options { seed: Some(3), ..none }, &[]).unwrap();
        assert_eq!(seed.notices, ["seed 3 has no effect without --faults"]);
        let devices = Some("2 faults=cut@1".parse().unwrap());
        let used = settings(&Options { seed: Some(3), devices, ..Options::default() }, &[]).unwrap();
        assert_eq!(used.notices, [""; 0]);
    }

    #[test]
    fn unknown_settings_are_reported_and_removed() {
        let settings =
            settings(&Options::default(), &[("IRONWARP_LANE", "2"), ("IRONWARP_crc", "off")]).unwrap();
        assert_eq!(
            settings.notices,
            ["unknown setting `lane` (IRONWARP_LANE), the closest is `lanes`; ignored"]
        );
        assert_eq!(settings.removed, ["IRONWARP_LANE"]);
    }

    #[test]
    fn an_invalid_value_is_an_error_unless_an_option_overrides_it() {
        let wrong = [("IRONWARP_LOG", "loud")];
        let error = settings(&Options::default(), &wrong).unwrap_err();
        assert!(error.starts_with("invalid value `loud` for the setting `log`: expected `off`, "), "{error}");
        let options = Options { log: Some(LogLevel::Off), ..Options::default() };
        assert_eq!(set(&settings(&options, &wrong).unwrap()), ["IRONWARP_LOG=off"]);
    }

    #[test]
    fn an_invalid_port_plan_is_an_error() {
        let options = Options { port_plan: Some("sideways@noon".to_owned()), ..Options::default() };
        let error = settings(&options, &[]).unwrap_err();
        assert!(error.contains("`port_plan`"), "{error}");
    }

    #[test]
    fn a_capture_that_cannot_be_created_is_an_error() {
        let options = Options { pcap: Some("/no/such/directory/x.pcap".into()), ..Options::default() };
        let error = settings(&options, &[]).unwrap_err();
        assert!(error.starts_with("failed to create the capture /no/such/directory/x.pcap: "), "{error}");
    }
}
