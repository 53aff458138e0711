//! The seam to the policies: core's questions, and what the daemon itself wants of the policy host.

use serde_json::Value;
use wipam_core::policy::Policies;
use wipam_core::record::{Decision, RecordedPolicy};

/// The policy host as the actor owns it.
pub trait Deciders: Send + 'static {
    /// As the seam core knows.
    fn policies(&mut self) -> &mut dyn Policies;

    /// Answers since the last call, oldest first, with the guard's word where it has spoken: for the flight recorder.
    fn take_decisions(&mut self) -> Vec<Decision>;

    /// Policies in force, for the header of a record.
    fn recorded(&self) -> Vec<RecordedPolicy>;

    /// What is in force, with settings, ladder, faults and refused candidates, for screens.
    fn status(&self) -> Value;

    /// The last `n` decisions, oldest first, for screens.
    fn decisions(&self, n: usize) -> Value;

    /// Steps the ladder of both slots up again: an operator has looked.
    fn reset(&mut self);
}

/// Something that may bring other policies while the daemon runs. Reading and compiling takes its time: it is called on
/// a blocking thread of its own.
pub trait Watch: Send + 'static {
    /// Looks; whether anything was swapped.
    fn poll(&mut self) -> bool;
}
