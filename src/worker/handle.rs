//! What a worker is started with.

/// The queue that an allocator is to serve, and the registration that it is awaited with.
#[derive(Clone, Copy)]
pub struct WorkerHandle {
    /// The queue's number.
    pub queue: u32,
    /// See above; never 0.
    pub registration: u32,
}

impl WorkerHandle {
    /// In one word, which is not 0: a background worker's argument.
    pub fn pack(self) -> u64 {
        (u64::from(self.queue) << 32) | u64::from(self.registration)
    }

    /// `None` for 0.
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
