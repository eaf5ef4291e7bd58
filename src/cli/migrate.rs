//! `turnkeep migrate`.

use super::SettingsArgs;
use super::output::say;
use crate::server;
use clap::Args;

/// Bring the schema up to date.
#[derive(Debug, Args)]
pub(super) struct Migrate {
    #[command(flatten)]
    settings: SettingsArgs,
}

impl Migrate {
    pub(super) async fn run(self) -> anyhow::Result<()> {
        let settings = self.settings.load()?;
        if matches!(settings.store.metadata, crate::settings::Metadata::Sqlite) {
            std::fs::create_dir_all(&settings.store.data_dir)?;
        }
        let applied = server::open_metadata(&settings).await?.migrate().await?;
        match applied.as_slice() {
            [] => say("the schema is up to date"),
            applied => say(&format!("applied migrations {applied:?}")),
        }
        Ok(())
    }
}
