//! The options of `ironwarp run`.

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use ironwarp_engine::config::{Check, DeviceName, Devices, LogLevel, Persona};
use ironwarp_rnic::fault::FaultPlan;
use std::path::PathBuf;

// No doc comment, which clap would print in the help.
#[derive(Debug, Default, Args)]
pub(super) struct Options {
    /// Name of the device [default: ironwarp0]
    #[arg(long)]
    pub(super) name: Option<DeviceName>,

    /// Kind of adapter that the program sees [default: roce]
    #[arg(long, value_parser = named_values(Persona::ALL, Persona::as_str))]
    pub(super) persona: Option<Persona>,

    /// Logical devices that the program sees, such as `8` [default: all]
    #[arg(long, value_name = "SPEC")]
    pub(super) devices: Option<Devices>,

    /// When ports go down and up, such as `ironwarp1 down@2s up@5s`
    #[arg(long, value_name = "PLAN")]
    pub(super) port_plan: Option<String>,

    /// Faults to inject, such as `split=0.2,cut@0.001`
    #[arg(long, value_name = "SPEC")]
    pub(super) faults: Option<FaultPlan>,

    /// Seed of the random choices of faults [default: random]
    #[arg(long, value_name = "N")]
    pub(super) seed: Option<u64>,

    /// Report misuse of verbs; with a device (mlx5, irdma or efa), also requests beyond its limits
    #[arg(long, value_name = "DEVICE", num_args = 0..=1, require_equals = true, default_missing_value = "on",
        value_parser = named_values(Check::ALL, Check::as_str), hide_possible_values = true)]
    pub(super) check: Option<Check>,

    /// With --check, fill receive buffers with poison until they complete, to find programs that read them too early
    #[arg(long, requires = "check")]
    pub(super) poison: bool,

    /// Append each finding and remark of --check to this file, as a line of JSON
    #[arg(long, value_name = "FILE", requires = "check")]
    pub(super) check_json: Option<PathBuf>,

    /// Suppressions for --check, in the format of valgrind
    #[arg(long, value_name = "FILE", requires = "check")]
    pub(super) suppressions: Option<PathBuf>,

    /// Show behaviour that the specifications allow but programs rarely expect; the seed repeats it
    #[arg(long, value_name = "SEED")]
    pub(super) adversary: Option<u64>,

    /// Capture the adapter's traffic to this file
    #[arg(long, value_name = "FILE")]
    pub(super) pcap: Option<PathBuf>,

    /// Log level of the adapter [default: warn]
    #[arg(long, value_name = "LEVEL", value_parser = named_values(LogLevel::ALL, LogLevel::as_str))]
    pub(super) log: Option<LogLevel>,
}

impl Options {
    /// Returns whether an option overrides this setting of the environment.
    pub(super) fn sets(&self, setting: &str) -> bool {
        match setting {
            "name" => self.name.is_some(),
            "persona" => self.persona.is_some(),
            "devices" => self.devices.is_some(),
            "port_plan" => self.port_plan.is_some(),
            "faults" => self.faults.is_some(),
            "seed" => self.seed.is_some(),
            "check" => self.check.is_some(),
            "check_poison" => self.poison,
            "check_json" => self.check_json.is_some(),
            "check_suppressions" => self.suppressions.is_some(),
            "adversary" => self.adversary.is_some(),
            "pcap" => self.pcap.is_some(),
            "log" => self.log.is_some(),
            _ => false,
        }
    }
}

/// Returns a parser that accepts the names of these values, and lists them in the help.
fn named_values<T: Copy + Send + Sync + 'static>(
    all: &'static [T],
    name: fn(T) -> &'static str,
) -> impl TypedValueParser<Value = T> {
    let find = move |text: String| all.iter().copied().find(|it| name(*it) == text);
    PossibleValuesParser::new(all.iter().map(|it| name(*it)))
        .try_map(move |text| find(text).ok_or("not one of these"))
}
