//! The `turnkeep` command.

use clap::Parser as _;
use std::process::ExitCode;

#[tokio::main]
async fn main() -> ExitCode {
    match turnkeep::cli::Cli::parse().run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            #[expect(clippy::print_stderr, reason = "standard error is for people")]
            {
                eprintln!("turnkeep: {error:#}");
            }
            ExitCode::FAILURE
        }
    }
}
