//! `turnkeep serve`.

use super::SettingsArgs;
use crate::{server, telemetry};
use clap::Args;
use std::net::SocketAddr;
use std::path::PathBuf;
use tokio::signal::unix::{SignalKind, signal};

/// Run the service until SIGTERM or SIGINT.
#[derive(Debug, Args)]
pub(super) struct Serve {
    #[command(flatten)]
    settings: SettingsArgs,
    /// Address of the gRPC server; the setting server.listen
    #[arg(long)]
    listen: Option<SocketAddr>,
    /// Directory of the embedded stores; the setting `store.data_dir`
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
}

impl Serve {
    pub(super) async fn run(self) -> anyhow::Result<()> {
        let mut settings = self.settings.load()?;
        settings.server.listen = self.listen.unwrap_or(settings.server.listen);
        settings.store.data_dir = self.data_dir.unwrap_or(settings.store.data_dir);
        telemetry::start_logs(&settings.log)?;
        let metrics = telemetry::start_metrics()?;
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let running = server::start(&settings, Some(metrics)).await?;
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        tracing::info!("turnkeep drains; a second signal ends it at once");
        tokio::select! {
            () = running.stop() => Ok(()),
            _ = terminate.recv() => anyhow::bail!("ended at once by a second signal"),
            _ = interrupt.recv() => anyhow::bail!("ended at once by a second signal"),
        }
    }
}
