//! The `turnkeep` command.

use clap::Parser as _;
use std::io;
use std::process::ExitCode;

/// An error with its causes, but for what it says itself of them.
fn told(error: &anyhow::Error) -> String {
    error.chain().fold(String::new(), |told, cause| {
        let cause = cause.to_string();
        if told.is_empty() {
            cause
        } else if told.contains(&cause) {
            told
        } else {
            format!("{told}: {cause}")
        }
    })
}

/// Whether it is that of standard output, and not that of a connection, which is told as
/// the cause of another error.
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

#[tokio::main]
async fn main() -> ExitCode {
    match turnkeep::cli::Cli::parse().run().await {
        Ok(()) => ExitCode::SUCCESS,
        // Whoever reads what is printed has read enough.
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            #[expect(clippy::print_stderr, reason = "standard error is for people")]
            {
                eprintln!("turnkeep: {}", told(&error));
            }
            ExitCode::FAILURE
        }
    }
}
