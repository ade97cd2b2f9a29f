//! What every section is given.

use crate::interrupt::Running;
use crate::options::Options;

/// The options of this run, and the servers that run.
pub struct Context<'a> {
    /// How thoroughly to measure.
    pub options: &'a Options,
    /// The servers to stop when the bench is interrupted.
    pub running: &'a Running,
}
