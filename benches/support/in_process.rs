//! A service in the benchmark's own process, whose stores it can look into.

use super::blobs::CountedBlobs;
use super::service::Stores;
use std::sync::Arc;
use turnkeep::client::Client;
use turnkeep::entropy::Entropy;
use turnkeep::server::{self, Running};
use turnkeep::settings::Settings;

/// A service; nothing is in its caches when it starts.
#[derive(Debug)]
pub(crate) struct InProcess {
    pub(crate) blobs: Arc<CountedBlobs>,
    running: Running,
}

impl InProcess {
    /// Starts a service over some stores.
    pub(crate) async fn start(stores: &Stores) -> anyhow::Result<Self> {
        let mut flags = stores.settings()?;
        flags.extend(["server.listen=127.0.0.1:0", "server.http_listen=127.0.0.1:0"].map(str::to_owned));
        // Journals are sealed as they grow, and their rests when `seal` is called.
        let seal = [
            "seal.old_seconds=0",
            "seal.old_raw_bytes=0",
            "seal.idle_seconds=0",
            "seal.interval_seconds=3600",
        ];
        flags.extend(seal.map(str::to_owned));
        flags.push("sweep.grace_seconds=0".to_owned());
        let settings = Settings::load(None, [], &flags)?;
        let entropy = Arc::new(Entropy::from_os());
        let mut opened = server::Stores::open(&settings, &entropy, true).await?;
        opened.meta.migrate().await?;
        let blobs = Arc::new(CountedBlobs::new(opened.blobs.clone()));
        opened.blobs = blobs.clone();
        let running = server::start_over(opened, &settings, entropy, None).await?;
        Ok(Self { blobs, running })
    }

    pub(crate) fn address(&self) -> String {
        format!("http://{}", self.running.grpc)
    }

    pub(crate) async fn client(&self) -> anyhow::Result<Client> {
        Ok(Client::connect(&self.address()).await?)
    }

    /// Does the background work that is due: seals all journals, merges small
    /// segments and erases what was replaced.
    pub(crate) async fn settle(&self) -> anyhow::Result<()> {
        let engine = self.running.engine();
        while engine.seal_due().await? + engine.roll_up_due().await? + engine.bury().await? > 0 {}
        Ok(())
    }

    pub(crate) async fn stop(self) {
        self.running.stop().await;
    }
}
