//! The `turnkeep` command.
fn main() {}
