//! The `turnkeep` command.

use clap::Parser as _;
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

#[tokio::main]
async fn main() -> ExitCode {
    match turnkeep::cli::Cli::parse().run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            #[expect(clippy::print_stderr, reason = "standard error is for people")]
            {
                eprintln!("turnkeep: {}", told(&error));
            }
            ExitCode::FAILURE
        }
    }
}
