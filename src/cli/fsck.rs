//! `turnkeep fsck`.

use super::SettingsArgs;
use super::output::{harmless, print, print_json, progress, say, table};
use crate::clock::SystemClock;
use crate::engine::{self, Engine, Finding, FsckOptions};
use crate::entropy::Entropy;
use crate::server;
use crate::settings::{Metadata, Settings};
use crate::store::{BlobStore, MetaStore};
use clap::Args;
use std::sync::Arc;

/// Check the metadata against the blobs, beside a running service or without
/// one. Exits with 0 if all is sound, and with 1 if not or if it cannot be
/// told; nothing is changed.
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
    /// empty Postgres database; without --rebuild, what it wrote and is to be
    /// checked against the blobs of the settings
    #[arg(long, value_name = "DIR|URL")]
    target: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Fsck {
    pub(super) async fn run(self) -> anyhow::Result<()> {
        let settings = self.settings.load()?;
        let mut of_target = settings.clone();
        if let Some(target) = &self.target {
            if target.contains("://") {
                of_target.store.metadata = target.to_owned().try_into().map_err(anyhow::Error::msg)?;
            } else {
                of_target.store.metadata = Metadata::Sqlite;
                of_target.store.data_dir = target.into();
            }
        }
        let entropy = Arc::new(Entropy::from_os());
        server::check_blobs(&settings)?;
        let findings = if self.rebuild {
            let blobs = server::open_blobs(&settings, &entropy, false).await?;
            self.rebuild(blobs.as_ref(), &of_target).await?
        } else {
            server::check_database(&of_target)?;
            let meta = server::open_metadata(&of_target).await?;
            let blobs = server::open_blobs(&settings, &entropy, false).await?;
            self.check(&settings, meta, blobs, entropy).await?
        };
        match findings {
            0 => Ok(()),
            1 => anyhow::bail!("1 finding"),
            findings => anyhow::bail!("{findings} findings"),
        }
    }

    async fn check(
        &self,
        settings: &Settings,
        meta: Arc<dyn MetaStore>,
        blobs: Arc<dyn BlobStore>,
        entropy: Arc<Entropy>,
    ) -> anyhow::Result<usize> {
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
                ("outputs", report.outputs),
                ("window states", report.window_states),
                ("notes", report.notes),
                ("entries compared", report.entries),
                ("orphans", report.orphans),
            ];
            print_counts(&counts, &report.findings)?;
            if report.findings.is_empty() {
                say(if self.deep { "sound" } else { "sound, as far as can be told without --deep" });
            }
        }
        Ok(report.findings.len())
    }

    async fn rebuild(&self, blobs: &dyn BlobStore, of_target: &Settings) -> anyhow::Result<usize> {
        if matches!(of_target.store.metadata, Metadata::Sqlite) {
            std::fs::create_dir_all(&of_target.store.data_dir)?;
        }
        let meta = server::open_metadata(of_target).await?;
        meta.migrate().await?;
        let bar = progress(None, "blobs");
        let report = engine::rebuild(blobs, meta.as_ref(), |done| bar.set_position(done)).await;
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
                ("outputs", report.outputs),
                ("window states", report.window_states),
                ("notes", report.notes),
            ];
            print_counts(&counts, &report.findings)?;
        }
        say(&format!("no blob tells of: {}", report.not_in_blobs));
        // A URL may hold a password.
        let target = match &of_target.store.metadata {
            Metadata::Sqlite => of_target.store.data_dir.display().to_string(),
            Metadata::Postgres(_) => "URL".to_owned(),
        };
        say(&format!(
            "a candidate: with the same settings, check it with `turnkeep fsck --deep --target {target}` \
             before anything is served from it"
        ));
        Ok(report.findings.len())
    }
}

fn print_counts(counts: &[(&str, u64)], findings: &[Finding]) -> anyhow::Result<()> {
    let rows: Vec<_> =
        counts.iter().map(|(name, count)| vec![(*name).to_owned(), count.to_string()]).collect();
    print(&table(&rows))?;
    findings
        .iter()
        .try_for_each(|finding| print(&harmless(&format!("{}: {}", finding.place, finding.problem))))
}
