//! The sizer half.
use wipam_policy_sdk::{sizing::*, types::*};
/// Plans.
///
/// # Errors
/// None.
pub fn plan(_g: &Given, _p: &Snapshot, _d: &Demand, _c: &Cloud, _m: &[u8]) -> Result<Decision, String> {
    Ok(Decision::new(Vec::new(), "nothing"))
}
