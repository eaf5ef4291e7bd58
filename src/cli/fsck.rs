//! `turnkeep fsck`.

use super::SettingsArgs;
use super::output::{print, print_json, progress, say, table};
use crate::clock::SystemClock;
use crate::engine::{self, Engine, Finding, FsckOptions};
use crate::entropy::Entropy;
use crate::server::{self, Stores};
use crate::settings::Settings;
use clap::Args;
use std::sync::Arc;

/// Check the metadata against the blobs. Exits with 1 if anything is wrong.
#[derive(Debug, Args)]
pub(super) struct Fsck {
    #[command(flatten)]
    settings: SettingsArgs,
    /// Fetch and decode every blob and compare it with the receipts
    #[arg(long)]
    deep: bool,
    /// Make the metadata anew from the blobs alone, into an empty store
    #[arg(long, requires = "target", conflicts_with = "deep")]
    rebuild: bool,
    /// Where --rebuild writes: a new directory for SQLite, or the URL of an
    /// empty Postgres database
    #[arg(long, value_name = "DIR|URL")]
    target: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Fsck {
    pub(super) async fn run(self) -> anyhow::Result<()> {
        let settings = self.settings.load()?;
        let entropy = Arc::new(Entropy::from_os());
        let stores = Stores::open(&settings, &entropy, false).await?;
        let findings = match &self.target {
            Some(target) if self.rebuild => self.rebuild(&settings, &stores, target).await?,
            _ => self.check(&settings, &stores, entropy).await?,
        };
        match findings {
            0 => Ok(()),
            findings => anyhow::bail!("{findings} findings"),
        }
    }

    async fn check(
        &self,
        settings: &Settings,
        stores: &Stores,
        entropy: Arc<Entropy>,
    ) -> anyhow::Result<usize> {
        let (meta, blobs) = (stores.meta.clone(), stores.blobs.clone());
        meta.ping().await?;
        let options = settings.engine_options();
        let engine = Engine::without_upkeep(meta, blobs, Arc::new(SystemClock), entropy, options).await?;
        let bar = progress(None, "branches");
        let report = engine.fsck(FsckOptions { deep: self.deep }, |done| bar.set_position(done)).await;
        bar.finish_and_clear();
        engine.drain().await;
        let report = report?;
        if self.json {
            print_json(&report)?;
        } else {
            let counts = [
                ("sessions", report.sessions),
                ("branches", report.branches),
                ("turns", report.turns),
                ("segments", report.segments),
                ("entries compared", report.entries),
                ("orphans", report.orphans),
            ];
            print_counts(&counts, &report.findings)?;
        }
        Ok(report.findings.len())
    }

    async fn rebuild(&self, settings: &Settings, stores: &Stores, target: &str) -> anyhow::Result<usize> {
        let mut target_settings = settings.clone();
        if target.contains("://") {
            target_settings.store.metadata = target.to_owned().try_into().map_err(anyhow::Error::msg)?;
        } else {
            target_settings.store.metadata = crate::settings::Metadata::Sqlite;
            target_settings.store.data_dir = target.into();
            std::fs::create_dir_all(target)?;
        }
        let meta = server::open_metadata(&target_settings).await?;
        meta.migrate().await?;
        let bar = progress(None, "blobs");
        let report =
            engine::rebuild(stores.blobs.as_ref(), meta.as_ref(), |done| bar.set_position(done)).await;
        bar.finish_and_clear();
        let report = report?;
        if self.json {
            print_json(&report)?;
        } else {
            let counts = [
                ("blobs read", report.blobs),
                ("sessions", report.sessions),
                ("deleted sessions", report.deleted),
                ("branches", report.branches),
                ("turns", report.turns),
                ("segments", report.segments),
            ];
            print_counts(&counts, &report.findings)?;
        }
        say(&format!("no blob tells of: {}", report.not_in_blobs));
        say("a candidate: check it with `turnkeep fsck --deep` before anything is served from it");
        Ok(report.findings.len())
    }
}

fn print_counts(counts: &[(&str, u64)], findings: &[Finding]) -> anyhow::Result<()> {
    let rows: Vec<_> =
        counts.iter().map(|(name, count)| vec![(*name).to_owned(), count.to_string()]).collect();
    print(&table(&rows))?;
    findings.iter().try_for_each(|finding| print(&format!("{}: {}", finding.place, finding.problem)))
}
