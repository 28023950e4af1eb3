//! The placeholders in the paths of the list, and what they stand for.

use ironwarp_engine::gid::MAX_GIDS;
use ironwarp_engine::logical::{LogicalDevice, RdmaPort};
use std::path::Path;
use std::sync::Arc;

/// A placeholder in the list. `tree.txt` describes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Placeholder {
    Device,
    Index,
    Slot,
    Port,
    GidIndex,
    Interface,
}

/// The placeholders by their names in the list.
const PLACEHOLDERS: [(&str, Placeholder); 6] = [
    ("DEVICE", Placeholder::Device),
    ("INDEX", Placeholder::Index),
    ("SLOT", Placeholder::Slot),
    ("PORT", Placeholder::Port),
    ("#", Placeholder::GidIndex),
    ("INTERFACE", Placeholder::Interface),
];

/// Placeholder for the directory of a device, in the targets of links.
pub(super) const PLACE: &str = "PLACE";
/// The directory of a device that has the addresses of all interfaces, below `/sys/devices`.
const PLATFORM_PLACE: &str = "platform/ironwarp";
/// The directory of any other device, below `/sys/devices`.
const PCI_PLACE: &str = "pci4957:00/4957:00:SLOT.0/4957:SLOT:00.0";

/// How paths name devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Naming {
    /// By the names that programs see.
    Program,
    /// By index, in the directory beside the library.
    Disk,
}

/// What the placeholders in a path stand for.
#[derive(Clone, Debug, Default)]
pub(super) struct Place<'a> {
    pub(super) device: Option<&'a LogicalDevice>,
    pub(super) port: Option<&'a RdmaPort>,
    pub(super) gid_index: Option<usize>,
    interface: Option<String>,
}

/// Returns whether a device is on the PCI bus. Those with the addresses of all interfaces are not.
pub(super) fn is_on_pci(device: &LogicalDevice) -> bool {
    !device.has_all_addresses()
}

impl<'a> Place<'a> {
    /// Matches a component of a path with one of the list, and returns the place that includes what its placeholder
    /// stands for. `None` if the components do not match.
    pub(super) fn matched(
        &self,
        listed: &str,
        component: &str,
        naming: Naming,
        devices: &'a [Arc<LogicalDevice>],
    ) -> Option<Self> {
        let Some((before, placeholder, after)) = split(listed) else {
            return (listed == component).then(|| self.clone());
        };
        let value = component.strip_prefix(before)?.strip_suffix(after)?;
        if placeholder == Placeholder::GidIndex {
            let index: Option<usize> = value.parse().ok();
            let index = index.filter(|index| *index < MAX_GIDS && index.to_string() == value);
            return index.map(|index| Self { gid_index: Some(index), ..self.clone() });
        }
        self.choices(placeholder, devices)
            .into_iter()
            .find(|place| place.value(placeholder, naming).is_some_and(|known| known == value))
    }

    /// Returns the places that a component of the list stands for in the directory of this place: one for each value of
    /// its placeholder.
    pub(super) fn expanded(&self, listed: &str, devices: &'a [Arc<LogicalDevice>]) -> Vec<Self> {
        match split(listed) {
            None => vec![self.clone()],
            Some((_, placeholder, _)) => self.choices(placeholder, devices),
        }
    }

    /// Returns a place for each value that a placeholder can have here. If the device is known already, it is the only
    /// choice.
    fn choices(&self, placeholder: Placeholder, devices: &'a [Arc<LogicalDevice>]) -> Vec<Self> {
        let here = || self.clone();
        let known_ports = self.device.map_or(&[][..], LogicalDevice::ports);
        match placeholder {
            Placeholder::Device | Placeholder::Index | Placeholder::Slot => devices
                .iter()
                .map(|device| &**device)
                .filter(|device| self.device.is_none_or(|known| known.index() == device.index()))
                .filter(|device| placeholder != Placeholder::Slot || is_on_pci(device))
                .map(|device| Self { device: Some(device), ..here() })
                .collect(),
            Placeholder::Port => known_ports.iter().map(|port| Self { port: Some(port), ..here() }).collect(),
            Placeholder::GidIndex => {
                (0..MAX_GIDS).map(|index| Self { gid_index: Some(index), ..here() }).collect()
            }
            Placeholder::Interface => {
                let exists = |name: &String| Path::new("/sys/class/net").join(name).exists();
                let names = known_ports.iter().filter_map(RdmaPort::interface).filter(exists);
                let mut names: Vec<String> = names.collect();
                names.sort();
                names.dedup();
                names.into_iter().map(|name| Self { interface: Some(name), ..here() }).collect()
            }
        }
    }

    /// Returns the value of a placeholder. `None` if nothing is known of it.
    fn value(&self, placeholder: Placeholder, naming: Naming) -> Option<String> {
        Some(match placeholder {
            Placeholder::Device if naming == Naming::Program => self.device?.name().to_owned(),
            Placeholder::Device | Placeholder::Index => self.device?.index().to_string(),
            Placeholder::Slot => format!("{:02x}", self.device?.index() + 1),
            Placeholder::Port => self.port?.number().to_string(),
            Placeholder::GidIndex => self.gid_index?.to_string(),
            Placeholder::Interface => self.interface.clone()?,
        })
    }

    /// Replaces the placeholders in a path of the list by their values.
    pub(super) fn fill(&self, listed: &str, naming: Naming) -> String {
        let place = if self.device.is_none_or(is_on_pci) { PCI_PLACE } else { PLATFORM_PLACE };
        let listed = listed.replace(PLACE, place);
        // By component, so that values that contain the name of a placeholder are left alone.
        let components = listed.split('/').map(|component| match split(component) {
            None => component.to_owned(),
            Some((before, placeholder, after)) => {
                let value = self.value(placeholder, naming).unwrap_or_default();
                format!("{before}{value}{after}")
            }
        });
        components.collect::<Vec<_>>().join("/")
    }
}

/// Finds the placeholder in a component of a path, and what is before and after it. `None` if there is none.
fn split(component: &str) -> Option<(&str, Placeholder, &str)> {
    PLACEHOLDERS.iter().find_map(|(name, placeholder)| {
        component.split_once(name).map(|(before, after)| (before, *placeholder, after))
    })
}
