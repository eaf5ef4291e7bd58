//! `turnkeep migrate`.

use super::SettingsArgs;
use super::output::say;
use crate::server;
use clap::Args;

/// Bring the schema of a database that is there up to date. The embedded one is
/// made, and kept up to date, by `turnkeep serve` alone.
#[derive(Debug, Args)]
pub(super) struct Migrate {
    #[command(flatten)]
    settings: SettingsArgs,
}

impl Migrate {
    pub(super) async fn run(self) -> anyhow::Result<()> {
        let settings = self.settings.load()?;
        server::check_database(&settings)?;
        let applied = server::open_metadata(&settings).await?.migrate().await?;
        match applied.as_slice() {
            [] => say("the schema is up to date"),
            applied => say(&format!("applied migrations {applied:?}")),
        }
        Ok(())
    }
}
