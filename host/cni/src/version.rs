//! The versions of the CNI specification: which are spoken, and which verb each has.

use crate::env::Verb;
use crate::error::{CniError, INCOMPATIBLE_VERSION};

/// A version of the specification, ordered by age.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Version {
    /// 0.1.0, which is also meant when a configuration names none.
    V0_1_0,
    /// 0.2.0
    V0_2_0,
    /// 0.3.0: results with interfaces.
    V0_3_0,
    /// 0.3.1
    V0_3_1,
    /// 0.4.0: CHECK.
    V0_4_0,
    /// 1.0.0: results without the family of addresses.
    V1_0_0,
    /// 1.1.0: GC and STATUS.
    V1_1_0,
}

impl Version {
    /// All, oldest first.
    pub const ALL: [Version; 7] = [
        Version::V0_1_0,
        Version::V0_2_0,
        Version::V0_3_0,
        Version::V0_3_1,
        Version::V0_4_0,
        Version::V1_0_0,
        Version::V1_1_0,
    ];
    /// The newest that is spoken.
    pub const NEWEST: Version = Version::V1_1_0;

    /// As it stands in `cniVersion`.
    pub fn as_str(self) -> &'static str {
        match self {
            Version::V0_1_0 => "0.1.0",
            Version::V0_2_0 => "0.2.0",
            Version::V0_3_0 => "0.3.0",
            Version::V0_3_1 => "0.3.1",
            Version::V0_4_0 => "0.4.0",
            Version::V1_0_0 => "1.0.0",
            Version::V1_1_0 => "1.1.0",
        }
    }

    /// Reads `cniVersion`; empty means 0.1.0, as the specification says.
    pub fn parse(text: &str) -> Result<Version, CniError> {
        if text.is_empty() {
            return Ok(Version::V0_1_0);
        }
        Version::ALL.into_iter().find(|v| v.as_str() == text).ok_or_else(|| {
            let shown: String = text.chars().take(32).collect();
            let known: Vec<_> = Version::ALL.iter().map(|v| v.as_str()).collect();
            CniError::new(
                INCOMPATIBLE_VERSION,
                format!("cniVersion {shown:?} is not supported"),
                format!("supported are {}", known.join(", ")),
            )
        })
    }

    /// Refuses a verb that this version does not have.
    pub fn allows(self, verb: Verb) -> Result<(), CniError> {
        let since = match verb {
            Verb::Add | Verb::Del | Verb::Version => Version::V0_1_0,
            Verb::Check => Version::V0_4_0,
            Verb::Gc | Verb::Status => Version::V1_1_0,
        };
        if self >= since {
            return Ok(());
        }
        Err(CniError::new(
            INCOMPATIBLE_VERSION,
            format!("{} does not exist in cniVersion {}", verb.as_str(), self.as_str()),
            format!("the configuration must say cniVersion {} or newer", since.as_str()),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_and_ordered() {
        for pair in Version::ALL.windows(2) {
            assert!(pair[0] < pair[1]);
        }
        for version in Version::ALL {
            assert_eq!(Version::parse(version.as_str()).unwrap(), version);
        }
        assert_eq!(Version::parse("").unwrap(), Version::V0_1_0);
        for wrong in ["1.2.0", "0.5.0", "1.0", "v1.0.0", " 1.0.0", "latest"] {
            assert_eq!(Version::parse(wrong).unwrap_err().code, INCOMPATIBLE_VERSION);
        }
    }

    #[test]
    fn verbs_came_with_versions() {
        assert!(Version::V0_3_1.allows(Verb::Check).is_err() && Version::V0_4_0.allows(Verb::Check).is_ok());
        for verb in [Verb::Gc, Verb::Status] {
            assert_eq!(Version::V1_0_0.allows(verb).unwrap_err().code, INCOMPATIBLE_VERSION);
            assert!(Version::V1_1_0.allows(verb).is_ok());
        }
        assert!(Version::V0_1_0.allows(Verb::Del).is_ok());
    }
}
