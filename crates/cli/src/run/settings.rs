//! The options of `run`, as the environment variables that the library reads; and what is wrong with those that are set.

use super::Options;
use crate::say::Failure;
use ironwarp_rnic::config::{Config, ConfigError, PREFIX};
use std::ffi::{OsStr, OsString};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::path::Path;

/// What is set, and what is to be said of it.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Settings {
    /// Variables to set.
    pub(super) set: Vec<(String, OsString)>,
    /// Variables to take away: no setting has their names. They are told here, so that nobody needs to tell again.
    pub(super) removed: Vec<OsString>,
    /// Lines for the person who runs it.
    pub(super) said: Vec<String>,
}

impl Settings {
    /// From the options, and the variables that are set.
    pub(super) fn new(
        options: &Options,
        variables: impl Iterator<Item = (OsString, OsString)>,
    ) -> Result<Self, Failure> {
        let mut settings = Self::default();
        let ours: Vec<_> = variables.filter(|(name, _)| is_ours(name)).collect();
        let mut config = Config::default();
        for (name, value) in &ours {
            settings.take(&mut config, name, value, options)?;
        }
        settings.options(options, &mut config);
        if let Some(path) = &options.pcap {
            settings.set("pcap", begin(path)?);
        }
        let faulty = config.faults != Config::default().faults;
        if faulty || options.seed.is_some() {
            settings.say_seed(&config, faulty);
        }
        Ok(settings)
    }

    /// A variable that is set. A name that is none is told; a value that is none would make something else happen than was
    /// wanted, such as no faults at all, so it ends here.
    fn take(
        &mut self,
        config: &mut Config,
        name: &OsStr,
        value: &OsStr,
        options: &Options,
    ) -> Result<(), Failure> {
        let setting = name.to_string_lossy()[PREFIX.len()..].to_lowercase();
        match config.set(&setting, &value.to_string_lossy()) {
            Err(error @ ConfigError::Unknown { .. }) => {
                self.said.push(format!("{error}; it is ignored"));
                self.removed.push(name.to_owned());
            }
            Err(error) if !options.sets(&setting) => return Err(error.into()),
            _ => {}
        }
        Ok(())
    }

    fn options(&mut self, options: &Options, config: &mut Config) {
        if let Some(name) = &options.name {
            self.set("name", name.as_str());
        }
        if let Some(persona) = options.persona {
            self.set("persona", persona.as_str());
        }
        if let Some(level) = options.log {
            self.set("log", level.as_str());
        }
        if let Some(faults) = options.faults {
            config.faults = faults;
            self.set("faults", faults.to_string());
        }
        if let Some(seed) = options.seed.or_else(|| options.faults.map(|_| seed_of(config))) {
            config.seed = seed;
            self.set("seed", seed.to_string());
        }
    }

    fn set(&mut self, setting: &str, value: impl Into<OsString>) {
        self.set.push((format!("{}{}", PREFIX, setting.to_uppercase()), value.into()));
    }

    fn say_seed(&mut self, config: &Config, faulty: bool) {
        let seed = config.seed;
        self.said.push(match faulty {
            true => {
                format!("faults {}, seed {seed}: --seed {seed} makes the same choices again", config.faults)
            }
            false => format!("seed {seed}, but no faults: --faults says which"),
        });
    }
}

fn is_ours(name: &OsStr) -> bool {
    name.as_encoded_bytes().starts_with(PREFIX.as_bytes())
}

/// The seed that is set; one that nobody chose, if none is. It is short enough to be typed.
fn seed_of(config: &Config) -> u64 {
    match config.seed {
        0 => 1 + RandomState::new().build_hasher().finish() % 999_999,
        seed => seed,
    }
}

/// Begins the file anew. The program adds to it, wherever it goes; so do the programs that it starts.
fn begin(path: &Path) -> Result<OsString, Failure> {
    let cannot = |error| format!("the capture cannot be written to {}: {error}", path.display());
    ironwarp_engine::sys::shared_file::begin(path).map_err(cannot)?;
    Ok(std::path::absolute(path).map_err(cannot)?.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use ironwarp_rnic::config::{LogLevel, Persona};

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
            log: Some(LogLevel::Debug),
            faults: Some("cut@0.5".parse().unwrap()),
            seed: Some(7),
            pcap: None,
        };
        let settings = settings(&options, &[("IRONWARP_PERSONA", "roce"), ("HOME", "/")]).unwrap();
        assert_eq!(
            set(&settings),
            [
                "IRONWARP_NAME=mlx5_0",
                "IRONWARP_PERSONA=iwarp",
                "IRONWARP_LOG=debug",
                "IRONWARP_FAULTS=cut@0.5",
                "IRONWARP_SEED=7"
            ]
        );
        assert_eq!(settings.said, ["faults cut@0.5, seed 7: --seed 7 makes the same choices again"]);
    }

    #[test]
    fn nothing_becomes_nothing() {
        assert_eq!(settings(&Options::default(), &[("HOME", "/")]), Ok(Settings::default()));
    }

    #[test]
    fn a_seed_is_chosen_and_told_when_there_are_faults() {
        let options = Options { faults: Some("cut@0.5".parse().unwrap()), ..Options::default() };
        let chosen = || {
            let settings = settings(&options, &[]).unwrap();
            let [_, seed] = &set(&settings)[..] else { panic!("{settings:?}") };
            let seed: u64 = seed.strip_prefix("IRONWARP_SEED=").unwrap().parse().unwrap();
            assert!(settings.said[0].contains(&format!(", seed {seed}: ")), "{settings:?}");
            seed
        };
        assert!((0..10).map(|_| chosen()).any(|seed| seed != chosen()), "always the same");
        let settings = settings(&options, &[("IRONWARP_SEED", "9")]).unwrap();
        assert_eq!(set(&settings)[1], "IRONWARP_SEED=9");
    }

    #[test]
    fn faults_and_seeds_of_the_environment_are_told_too() {
        let none = Options::default();
        let faults = settings(&none, &[("IRONWARP_FAULTS", "cut@1"), ("IRONWARP_SEED", "3")]).unwrap();
        assert_eq!(faults.said, ["faults cut@1, seed 3: --seed 3 makes the same choices again"]);
        assert_eq!(set(&faults), [""; 0]);
        let seed = settings(&Options { seed: Some(3), ..none }, &[]).unwrap();
        assert_eq!(seed.said, ["seed 3, but no faults: --faults says which"]);
    }

    #[test]
    fn a_name_that_is_none_is_told_and_taken_away() {
        let settings =
            settings(&Options::default(), &[("IRONWARP_LANE", "2"), ("IRONWARP_crc", "off")]).unwrap();
        assert_eq!(
            settings.said,
            ["there is no setting `lane` (IRONWARP_LANE); the nearest is `lanes`; it is ignored"]
        );
        assert_eq!(settings.removed, ["IRONWARP_LANE"]);
    }

    #[test]
    fn a_value_that_is_none_ends_it_unless_an_option_sets_another() {
        let wrong = [("IRONWARP_LOG", "loud")];
        let error = settings(&Options::default(), &wrong).unwrap_err();
        assert!(error.starts_with("`loud` is not a value for the setting `log`: `off`, "), "{error}");
        let options = Options { log: Some(LogLevel::Off), ..Options::default() };
        assert_eq!(set(&settings(&options, &wrong).unwrap()), ["IRONWARP_LOG=off"]);
    }

    #[test]
    fn a_capture_that_cannot_be_written_ends_it() {
        let options = Options { pcap: Some("/no/such/directory/x.pcap".into()), ..Options::default() };
        let error = settings(&options, &[]).unwrap_err();
        assert!(error.starts_with("the capture cannot be written to /no/such/directory/x.pcap: "), "{error}");
    }
}
