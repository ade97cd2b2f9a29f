//! What the searches have found.

/// Outcome of one search of all histories.
pub struct Line<'a> {
    pub world: &'a str,
    /// The rule or the assumption left out.
    pub without: &'a str,
    /// The shortest history that breaks a promise.
    pub history: String,
    /// Its number of steps; 0 for none.
    pub len: usize,
    pub worlds: usize,
    pub depth: u64,
    pub seconds: f32,
}

/// Prints a line.
pub fn print(line: &Line) {
    let Line {
        world,
        without,
        history,
        len,
        worlds,
        depth,
        seconds,
    } = line;
    println!(
        "{world}, without {without}: {history} ({len} steps, {worlds} worlds, depth {depth}, {seconds:.1} s)"
    );
}
