//! Networking limits of EC2 instance types: a table checked in as `instance_types.json`, written by
//! `tools/instance_types.py`.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use serde::{Deserialize, Serialize};

const TABLE: &str = include_str!("instance_types.json");

/// What runs beneath the instance. Prefixes (/28) need [`Hypervisor::Nitro`] or bare metal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Hypervisor {
    /// The Nitro system.
    Nitro,
    /// The older Xen generation.
    Xen,
    /// No hypervisor: a bare-metal type.
    Metal,
}

/// The networking limits of one instance type.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct InstanceType {
    /// For example `m5.large`.
    pub name: String,
    /// Maximum number of interfaces for each network card; the index is the card's.
    pub cards: Vec<u32>,
    /// Maximum IPv4 addresses for each interface, the primary one included; a /28 prefix counts as one.
    pub ipv4_per_eni: u32,
    /// What runs beneath.
    pub hypervisor: Hypervisor,
}

impl InstanceType {
    /// Maximum number of interfaces on all cards together.
    pub fn max_enis(&self) -> u32 {
        self.cards.iter().sum()
    }

    /// Whether this is a bare-metal type.
    pub fn bare_metal(&self) -> bool {
        self.hypervisor == Hypervisor::Metal
    }

    /// Whether EC2 assigns /28 prefixes to interfaces of this type.
    pub fn prefix_capable(&self) -> bool {
        self.hypervisor != Hypervisor::Xen
    }
}

/// The limits of a type by its name, `None` if the table does not have it.
pub fn lookup(name: &str) -> Option<&'static InstanceType> {
    table().get(name)
}

/// All types of the table, by name.
pub fn all() -> impl Iterator<Item = &'static InstanceType> {
    table().values()
}

fn table() -> &'static BTreeMap<String, InstanceType> {
    static PARSED: OnceLock<BTreeMap<String, InstanceType>> = OnceLock::new();
    PARSED.get_or_init(|| {
        // The file is part of the build and a test parses it, so a failure here is not an input error.
        let rows: BTreeMap<String, (Vec<u32>, u32, Hypervisor)> = serde_json::from_str(TABLE).unwrap_or_default();
        rows.into_iter()
            .map(|(name, (cards, ipv4_per_eni, hypervisor))| {
                (name.clone(), InstanceType { name, cards, ipv4_per_eni, hypervisor })
            })
            .collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_limits() {
        for (name, enis, ipv4) in [
            ("t2.medium", 3, 6),
            ("t3.nano", 2, 2),
            ("t3.small", 3, 4),
            ("t3.medium", 3, 6),
            ("m5.large", 3, 10),
            ("m5.xlarge", 4, 15),
            ("m5.4xlarge", 8, 30),
            ("m4.4xlarge", 8, 30),
            ("c5.metal", 15, 50),
            ("p3dn.24xlarge", 15, 50),
        ] {
            let found = lookup(name).unwrap_or_else(|| panic!("{name} is missing"));
            assert_eq!((found.cards.as_slice(), found.ipv4_per_eni), ([enis].as_slice(), ipv4), "{name}");
        }
        assert_eq!(lookup("p4d.24xlarge").unwrap().cards, vec![15; 4]);
        assert_eq!(lookup("p5.48xlarge").unwrap().cards, vec![2; 32]);
        assert!(!lookup("m4.4xlarge").unwrap().prefix_capable());
        assert!(lookup("m5.large").unwrap().prefix_capable());
        assert!(lookup("c5.metal").unwrap().bare_metal() && lookup("c5.metal").unwrap().prefix_capable());
        assert!(lookup("z9.huge").is_none());
    }

    #[test]
    fn the_whole_table_is_plausible() {
        assert!(all().count() >= 1395);
        for kind in all() {
            assert!(kind.max_enis() >= 1 && kind.ipv4_per_eni >= 1, "{kind:?}");
        }
        for family in ["m", "c", "r", "t"] {
            assert!(all().filter(|kind| kind.name.starts_with(family)).count() > 10, "family {family}");
        }
    }
}
