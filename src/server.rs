//! The composition root: settings become components, which serve until they
//! are told to stop. The only file that names every backend.

use crate::clock::{self, Clock, SystemClock};
use crate::engine::Engine;
use crate::entropy::Entropy;
use crate::limits::REQUEST_BYTES_MAX;
use crate::model::{TenantId, Tokenizer, WireFormat};
use crate::rpc::pb::memory_service_server::MemoryServiceServer;
use crate::rpc::pb::model_service_server::ModelServiceServer;
use crate::rpc::pb::session_service_server::SessionServiceServer;
use crate::rpc::pb::tool_output_service_server::ToolOutputServiceServer;
use crate::rpc::pb::transcript_service_server::TranscriptServiceServer;
use crate::rpc::{self, Admission, Memory, Models, Sessions, ToolOutputs, Transcripts, pb};
use crate::settings::{self, BlobsKind, Metadata, Settings};
use crate::store::local::LocalBlobs;
use crate::store::metered::MeteredBlobs;
use crate::store::probed::ProbedBlobs;
#[cfg(feature = "s3")]
use crate::store::s3::{S3Blobs, S3Options};
use crate::store::sql::{PostgresOptions, SqlMetaStore};
use crate::store::{BlobStore, MetaStore};
use crate::telemetry;
use crate::tokens::TokenCounter;
use anyhow::Context as _;
use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::get;
use metrics_exporter_prometheus::PrometheusHandle;
use std::fs::{self, File, TryLockError};
use std::net::SocketAddr;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::server::NamedService;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tower::util::MapResponseLayer;

/// Pings find connections whose other end is gone.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(30);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);
/// The services as health checks name them.
const MEMORY: &str = <MemoryServiceServer<Memory> as NamedService>::NAME;
const MODELS: &str = <ModelServiceServer<Models> as NamedService>::NAME;
const SESSIONS: &str = <SessionServiceServer<Sessions> as NamedService>::NAME;
const TOOL_OUTPUTS: &str = <ToolOutputServiceServer<ToolOutputs> as NamedService>::NAME;
const TRANSCRIPTS: &str = <TranscriptServiceServer<Transcripts> as NamedService>::NAME;
/// Calls of one connection at the same time.
const STREAMS_PER_CONNECTION: u32 = 256;
/// Connections are closed in order after this time, so that clients spread over
/// replicas.
const CONNECTION_AGE: Duration = Duration::from_mins(30);

/// The stores that settings describe.
#[derive(Debug, Clone)]
pub struct Stores {
    /// Metadata.
    pub meta: Arc<dyn MetaStore>,
    /// Blobs.
    pub blobs: Arc<dyn BlobStore>,
    /// Whether the metadata is the embedded database.
    pub embedded: bool,
    /// Keeps a second process from the data directory for as long as it lives.
    _lock: Option<Arc<File>>,
}

impl Stores {
    /// Opens the stores. With `exclusive` a local data directory is locked.
    pub async fn open(settings: &Settings, entropy: &Arc<Entropy>, exclusive: bool) -> anyhow::Result<Self> {
        let embedded = matches!(settings.store.metadata, Metadata::Sqlite);
        let local = embedded || settings.blobs.kind == BlobsKind::Local;
        let data_dir = &settings.store.data_dir;
        let lock = if local {
            // Transcripts are nobody else's business.
            let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(data_dir);
            made.with_context(|| format!("cannot make {}", data_dir.display()))?;
            if exclusive { Some(Arc::new(lock(data_dir)?)) } else { None }
        } else {
            None
        };
        let meta = open_metadata(settings).await?;
        let blobs = open_blobs(settings, entropy, exclusive).await?;
        Ok(Self { meta, blobs, embedded, _lock: lock })
    }
}

fn lock(data_dir: &Path) -> anyhow::Result<File> {
    let path = data_dir.join("lock");
    let file = File::options().create(true).write(true).truncate(false).open(&path)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => anyhow::bail!("another process uses {}", data_dir.display()),
        Err(TryLockError::Error(error)) => {
            Err(error).with_context(|| format!("cannot lock {}", path.display()))
        }
    }
}

/// Fails if the settings name an embedded database that is not there: a command
/// that opened it would make an empty one, and have an answer for a wrong place.
pub fn check_database(settings: &Settings) -> anyhow::Result<()> {
    match settings.store.metadata {
        Metadata::Sqlite => check_is_there("database", &database(&settings.store.data_dir)),
        Metadata::Postgres(_) => Ok(()),
    }
}

/// The same of local blobs.
pub fn check_blobs(settings: &Settings) -> anyhow::Result<()> {
    match settings.blobs.kind {
        BlobsKind::Local => check_is_there("directory of blobs", &blobs_dir(&settings.store.data_dir)),
        BlobsKind::S3 => Ok(()),
    }
}

fn check_is_there(what: &str, path: &Path) -> anyhow::Result<()> {
    let place = path.display();
    let is_there = path.try_exists().with_context(|| format!("cannot look for {place}"))?;
    anyhow::ensure!(is_there, "there is no {what} at {place}: store.data_dir must be that of the service");
    Ok(())
}

fn database(data_dir: &Path) -> PathBuf {
    data_dir.join("turnkeep.db")
}

fn blobs_dir(data_dir: &Path) -> PathBuf {
    data_dir.join("blobs")
}

/// Opens the metadata store.
pub async fn open_metadata(settings: &Settings) -> anyhow::Result<Arc<dyn MetaStore>> {
    let store = &settings.store;
    Ok(match &store.metadata {
        Metadata::Sqlite => Arc::new(SqlMetaStore::sqlite(&database(&store.data_dir)).await?),
        Metadata::Postgres(url) => Arc::new(SqlMetaStore::postgres(&PostgresOptions {
            url: url.clone(),
            pools: store.pools,
            acquire_timeout: Duration::from_secs(store.acquire_seconds.max(1)),
        })?),
    })
}

/// Opens the object store. With `exclusive`, what a crash has left half-written
/// is removed.
#[cfg_attr(not(feature = "s3"), expect(clippy::unused_async, reason = "S3 is connected to"))]
pub async fn open_blobs(
    settings: &Settings,
    entropy: &Arc<Entropy>,
    exclusive: bool,
) -> anyhow::Result<Arc<dyn BlobStore>> {
    let blobs = &settings.blobs;
    let store: Arc<dyn BlobStore> = match blobs.kind {
        BlobsKind::Local => {
            let local = LocalBlobs::open(&blobs_dir(&settings.store.data_dir), entropy.clone())?;
            if exclusive {
                local.remove_leftovers()?;
            }
            Arc::new(local)
        }
        #[cfg(feature = "s3")]
        BlobsKind::S3 => Arc::new(
            S3Blobs::connect(S3Options {
                bucket: blobs.bucket.clone(),
                prefix: blobs.prefix.clone(),
                endpoint: blobs.endpoint.clone(),
                region: blobs.region.clone(),
                path_style: blobs.path_style,
            })
            .await,
        ),
        #[cfg(not(feature = "s3"))]
        BlobsKind::S3 => anyhow::bail!("this binary was built without S3"),
    };
    Ok(Arc::new(MeteredBlobs::new(store)))
}

/// A service that runs.
#[derive(Debug)]
pub struct Running {
    /// Address of the gRPC server.
    pub grpc: SocketAddr,
    /// Address of the HTTP server.
    pub http: SocketAddr,
    engine: Engine,
    stop: CancellationToken,
    servers: TaskTracker,
    grace: Duration,
    /// Kept until all commits are done: then another process may have them.
    stores: Stores,
}

/// Starts the service: opens the stores, migrates the embedded database, and
/// listens.
pub async fn start(settings: &Settings, metrics: Option<PrometheusHandle>) -> anyhow::Result<Running> {
    let entropy = Arc::new(Entropy::from_os());
    let stores = Stores::open(settings, &entropy, true).await?;
    if stores.embedded {
        let applied = stores.meta.migrate().await.context("cannot migrate the embedded database")?;
        tracing::debug!(?applied, "migrated");
    }
    // The vocabulary takes a while to load; the first request need not wait.
    tokio::task::spawn_blocking(|| TokenCounter::new(WireFormat::OpenaiChat, Tokenizer::O200k).warm_up());
    start_over(stores, settings, entropy, metrics).await
}

/// Starts the service over stores that are open and have their schema.
pub async fn start_over(
    stores: Stores,
    settings: &Settings,
    entropy: Arc<Entropy>,
    metrics: Option<PrometheusHandle>,
) -> anyhow::Result<Running> {
    stores.meta.ping().await.context("the metadata store is not ready")?;
    let blobs = usable(stores.blobs.clone()).await?;
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let mut options = settings.engine_options();
    options.compaction.prompt = settings.prompt()?;
    options.summarizer = settings.summarizer.open()?.map(Arc::new);
    let engine = Engine::start(stores.meta.clone(), blobs, clock, entropy, options).await?;
    let mut running = Running {
        grpc: settings.server.listen,
        http: settings.server.http_listen,
        engine: engine.clone(),
        stop: CancellationToken::new(),
        servers: TaskTracker::new(),
        grace: Duration::from_secs(settings.server.drain_grace_seconds),
        stores,
    };
    let grpc = TcpListener::bind(running.grpc)
        .await
        .with_context(|| format!("cannot listen on {}", running.grpc))?;
    let http = TcpListener::bind(running.http)
        .await
        .with_context(|| format!("cannot listen on {}", running.http))?;
    (running.grpc, running.http) = (grpc.local_addr()?, http.local_addr()?);
    running.spawn_grpc(grpc, &settings.server)?;
    running.spawn_http(http, metrics);
    running.servers.close();
    tracing::info!(grpc = %running.grpc, http = %running.http, "turnkeep listens");
    Ok(running)
}

/// The object store, tried. One that cannot be reached is tried again before it is
/// written to: turns go to the journal meanwhile, as in any other outage.
async fn usable(blobs: Arc<dyn BlobStore>) -> anyhow::Result<Arc<dyn BlobStore>> {
    match blobs.probe().await {
        Ok(()) => Ok(blobs),
        Err(error) if error.is_retryable() => {
            let error: &dyn std::error::Error = &error;
            tracing::error!(error, "the object store cannot be used yet");
            Ok(Arc::new(ProbedBlobs::new(blobs)))
        }
        Err(error) => Err(error).context("the object store is not ready"),
    }
}

impl Running {
    /// The engine that serves.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    fn spawn_grpc(&self, listener: TcpListener, settings: &settings::Server) -> anyhow::Result<()> {
        let wait = Duration::from_secs(settings.persist_wait_seconds);
        let admission = Admission::new(settings.persist_bytes_in_flight, wait);
        let tenant = TenantId::default_tenant();
        let sessions = SessionServiceServer::new(Sessions::new(self.engine.clone(), tenant.clone()))
            .max_decoding_message_size(REQUEST_BYTES_MAX);
        let memory = MemoryServiceServer::new(Memory::new(self.engine.clone(), tenant.clone()));
        // 4 MiB of content and its envelope.
        let outputs = ToolOutputServiceServer::new(ToolOutputs::new(self.engine.clone(), tenant.clone()))
            .max_decoding_message_size((4 << 20) + (64 << 10));
        let transcripts = TranscriptServiceServer::new(Transcripts::new(self.engine.clone(), tenant))
            .max_decoding_message_size(REQUEST_BYTES_MAX)
            // One entry may be as large as a request; its envelope comes on top.
            .max_encoding_message_size(2 * REQUEST_BYTES_MAX);
        let (mut health, health_service) = tonic_health::server::health_reporter();
        let mut router = Server::builder()
            .http2_keepalive_interval(Some(KEEPALIVE_INTERVAL))
            .http2_keepalive_timeout(Some(KEEPALIVE_TIMEOUT))
            .max_concurrent_streams(STREAMS_PER_CONNECTION)
            .max_connection_age(CONNECTION_AGE)
            .layer(MapResponseLayer::new(rpc::complete))
            .layer(admission)
            .add_service(health_service)
            .add_service(ModelServiceServer::new(Models))
            .add_service(sessions)
            .add_service(memory)
            .add_service(outputs)
            .add_service(transcripts);
        if settings.reflection {
            let builder = || {
                tonic_reflection::server::Builder::configure()
                    .register_encoded_file_descriptor_set(pb::DESCRIPTORS)
                    .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
            };
            router = router.add_service(builder().build_v1()?).add_service(builder().build_v1alpha()?);
        }
        let stop = self.stop.clone();
        self.servers.spawn(async move {
            health.set_serving::<MemoryServiceServer<Memory>>().await;
            health.set_serving::<ModelServiceServer<Models>>().await;
            health.set_serving::<SessionServiceServer<Sessions>>().await;
            health.set_serving::<ToolOutputServiceServer<ToolOutputs>>().await;
            health.set_serving::<TranscriptServiceServer<Transcripts>>().await;
            let stopped = async move {
                stop.cancelled().await;
                // Before the connections end, so that balancers look elsewhere.
                health.set_service_status("", tonic_health::ServingStatus::NotServing).await;
                health.set_not_serving::<MemoryServiceServer<Memory>>().await;
                health.set_not_serving::<ModelServiceServer<Models>>().await;
                health.set_not_serving::<SessionServiceServer<Sessions>>().await;
                health.set_not_serving::<ToolOutputServiceServer<ToolOutputs>>().await;
                health.set_not_serving::<TranscriptServiceServer<Transcripts>>().await;
                // Watchers are told that, and then that it was the last: else the
                // drain would wait for them until its grace is over.
                for service in ["", MEMORY, MODELS, SESSIONS, TOOL_OUTPUTS, TRANSCRIPTS] {
                    health.clear_service_status(service).await;
                }
            };
            let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
            if let Err(error) = router.serve_with_incoming_shutdown(incoming, stopped).await {
                tracing::error!(%error, "the gRPC server ended");
            }
        });
        Ok(())
    }

    fn spawn_http(&self, listener: TcpListener, metrics: Option<PrometheusHandle>) {
        if let Some(metrics) = metrics.clone() {
            let interval = telemetry::METRICS_UPKEEP_INTERVAL;
            self.servers.spawn(telemetry::keep_metrics(metrics, interval, self.stop.clone()));
        }
        let render = move || metrics.as_ref().map(PrometheusHandle::render).unwrap_or_default();
        let router = Router::new()
            .route("/metrics", get(|| async move { render() }))
            // The process lives as long as it answers; a store that is down must
            // not restart it.
            .route("/livez", get(|| async { "ok\n" }))
            .route("/readyz", get(ready))
            .with_state((self.engine.clone(), self.stop.clone()));
        let stop = self.stop.clone();
        self.servers.spawn(async move {
            let served =
                axum::serve(listener, router).with_graceful_shutdown(async move { stop.cancelled().await });
            if let Err(error) = served.await {
                tracing::error!(%error, "the HTTP server ended");
            }
        });
    }

    /// Stops: takes no more calls, gives those in progress time to end, and
    /// waits for commits that are under way.
    pub async fn stop(self) {
        self.stop.cancel();
        if clock::deadline(self.grace, self.servers.wait()).await.is_none() {
            tracing::warn!(grace_seconds = self.grace.as_secs(), "calls in progress were cut off");
        }
        self.engine.drain().await;
        drop(self.stores);
        tracing::info!("turnkeep has stopped");
    }
}

async fn ready(State((engine, stop)): State<(Engine, CancellationToken)>) -> (StatusCode, String) {
    if stop.is_cancelled() {
        return (StatusCode::SERVICE_UNAVAILABLE, "draining\n".to_owned());
    }
    match engine.ready().await {
        Ok(()) => (StatusCode::OK, "ok\n".to_owned()),
        Err(error) => (StatusCode::SERVICE_UNAVAILABLE, format!("{}\n", error.reason().as_str())),
    }
}
