//! Short texts in shared memory.

/// A text of at most N bytes, N ≤ 255. Longer texts are shortened.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Text<const N: usize> {
    len: u8,
    bytes: [u8; N],
}

impl<const N: usize> Text<N> {
    /// No text.
    pub const EMPTY: Self = Self {
        len: 0,
        bytes: [0; N],
    };

    /// Shortens a long text in the middle, since the cause of an error is often at its end.
    pub fn new(text: &str) -> Self {
        const GAP: &[u8] = b"...";
        let mut bytes = [0; N];
        let (head, gap, tail) = if text.len() <= N {
            (text, &[][..], "")
        } else {
            let half = (N - GAP.len()) / 2;
            let (mut head, mut tail) = (half, text.len() - half);
            while !text.is_char_boundary(head) {
                head -= 1;
            }
            while !text.is_char_boundary(tail) {
                tail += 1;
            }
            let part = |range: core::ops::Range<usize>| text.get(range).unwrap_or_default();
            (part(0..head), GAP, part(tail..text.len()))
        };
        let all = [head.as_bytes(), gap, tail.as_bytes()];
        let mut len = 0;
        for (to, from) in bytes.iter_mut().zip(all.into_iter().flatten()) {
            *to = *from;
            len += 1;
        }
        Self { len, bytes }
    }

    /// The text.
    pub fn get(&self) -> String {
        let bytes = self.bytes.get(..usize::from(self.len)).unwrap_or_default();
        String::from_utf8_lossy(bytes).into_owned()
    }
}
