//! Argument of a worker.

/// The queue an allocator must serve, and its registration number.
#[derive(Clone, Copy)]
pub struct WorkerHandle {
    /// The queue's number.
    pub queue: u32,
    /// The announced registration; never 0.
    pub registration: u32,
}

impl WorkerHandle {
    /// Packs the handle into one nonzero word, the argument of a background worker.
    pub fn pack(self) -> u64 {
        debug_assert!(self.registration != 0, "a handle without a registration");
        (u64::from(self.queue) << 32) | u64::from(self.registration)
    }

    /// Unpacks a word; `None` for 0.
    pub fn unpack(word: u64) -> Option<Self> {
        #[expect(
            clippy::cast_possible_truncation,
            reason = "two halves of what was packed"
        )]
        let (queue, registration) = ((word >> 32) as u32, word as u32);
        (word != 0).then_some(Self {
            queue,
            registration,
        })
    }
}
