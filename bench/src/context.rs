//! What every section is given.

use crate::interrupt::Running;
use crate::options::Options;

/// The options of this run, and what has to be stopped when it is interrupted.
pub struct Context<'a> {
    /// How thoroughly to measure.
    pub options: &'a Options,
    /// Servers that are started are noted here.
    pub running: &'a Running,
}
