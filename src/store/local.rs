//! Blobs in a local directory.

use crate::clock::Micros;
use crate::codec::digest;
use crate::entropy::Entropy;
use crate::model::Digest;
use crate::store::blob::{BlobInfo, BlobStore, BlobUpload, ends_early, range_length};
use crate::store::{ErrorKind, StoreError};
use async_trait::async_trait;
use bytes::Bytes;
use std::fs::{self, File};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::UNIX_EPOCH;

/// Directory for files that are being written, beside the keys.
const TEMPORARY: &str = ".tmp";

/// Blobs in a local directory, one file each.
///
/// A file is written under another name, synced, linked to its own name, which
/// fails if that is taken, and its directory is synced: after a crash it is
/// there whole or not at all.
#[derive(Debug, Clone)]
pub struct LocalBlobs {
    root: Arc<Path>,
    entropy: Arc<Entropy>,
    /// Held while directories are made: whoever finds one there must be able to
    /// rely on its name being synced.
    making: Arc<Mutex<()>>,
}

impl LocalBlobs {
    /// Blobs under `root`, which is made if it is not there.
    pub fn open(root: &Path, entropy: Arc<Entropy>) -> Result<Self, StoreError> {
        let failed = |error| io_error(format!("open {}", root.display()), error);
        fs::create_dir_all(root.join(TEMPORARY)).map_err(failed)?;
        Ok(Self { root: root.into(), entropy, making: Arc::default() })
    }

    /// Removes what a crash has left half-written. Only for whom nobody else
    /// writes beside: it would take away what they are writing.
    pub fn remove_leftovers(&self) -> Result<(), StoreError> {
        let failed = |error| io_error(format!("clean {}", self.root.display()), error);
        for file in fs::read_dir(self.root.join(TEMPORARY)).map_err(failed)? {
            fs::remove_file(file.map_err(failed)?.path()).map_err(failed)?;
        }
        Ok(())
    }

    fn path(&self, key: &str) -> Result<PathBuf, StoreError> {
        let is_plain = |part: &str| {
            !part.is_empty()
                && !part.starts_with('.')
                && part.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"-_.".contains(&b))
        };
        if key.split('/').all(is_plain) {
            Ok(self.root.join(key))
        } else {
            Err(StoreError::new(ErrorKind::Internal, format!("not a blob key: {key:?}")))
        }
    }

    /// That what is at a key is what was to be put there, if it was there before.
    async fn check_existing(&self, key: &str, is_new: bool, sha256: Digest) -> Result<(), StoreError> {
        if is_new {
            return Ok(());
        }
        let existing = self.get(key).await?;
        if digest::sha256(&existing) == sha256 {
            return Ok(());
        }
        Err(StoreError::new(ErrorKind::KeyTaken, format!("put {key}")))
    }

    async fn run<T: Send + 'static>(
        &self,
        context: String,
        work: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        let root = self.root.clone();
        let work = move || {
            work().map_err(|error| {
                // Nothing is known of the blobs when all of them are out of
                // sight, such as those of a disk that is not mounted.
                let is_away = error.kind() == io::ErrorKind::NotFound && check_root(&root).is_err();
                let kind = if is_away { ErrorKind::Unavailable } else { kind_of(&error) };
                (kind, error)
            })
        };
        match tokio::task::spawn_blocking(work).await {
            Ok(result) => result.map_err(|(kind, error)| StoreError::caused(kind, context, error)),
            Err(error) => Err(StoreError::caused(ErrorKind::Internal, context, error)),
        }
    }
}

#[async_trait]
impl BlobStore for LocalBlobs {
    async fn put_new(&self, key: &str, body: Bytes, sha256: Digest) -> Result<(), StoreError> {
        let path = self.path(key)?;
        let (root, making) = (self.root.clone(), self.making.clone());
        let temporary = Temporary(root.join(TEMPORARY).join(self.entropy.hex::<16>()));
        let written = self.run(format!("put {key}"), move || {
            let mut file = File::options().write(true).create_new(true).open(&temporary.0)?;
            file.write_all(&body)?;
            publish(&root, &making, &file, &temporary, &path)
        });
        let is_new = written.await?;
        self.check_existing(key, is_new, sha256).await
    }

    async fn begin(&self, key: &str) -> Result<Box<dyn BlobUpload>, StoreError> {
        let path = self.path(key)?;
        let temporary = Temporary(self.root.join(TEMPORARY).join(self.entropy.hex::<16>()));
        let opened = self.run(format!("begin {key}"), move || {
            let file = File::options().write(true).create_new(true).open(&temporary.0)?;
            Ok((file, temporary))
        });
        let (file, temporary) = opened.await?;
        let (blobs, key) = (self.clone(), key.to_owned());
        Ok(Box::new(LocalUpload { blobs, key, path, temporary, file: Some(file) }))
    }

    async fn get(&self, key: &str) -> Result<Bytes, StoreError> {
        let path = self.path(key)?;
        self.run(format!("get {key}"), move || fs::read(path).map(Bytes::from)).await
    }

    async fn get_range(&self, key: &str, range: Range<u64>) -> Result<Bytes, StoreError> {
        let path = self.path(key)?;
        let length = range_length(key, &range)?;
        let start = range.start;
        let read = self.run(format!("get {key}"), move || {
            let mut file = File::open(path)?;
            // What is not there takes no memory.
            let has = file.metadata()?.len().saturating_sub(start);
            let mut body = Vec::with_capacity(length.min(usize::try_from(has).unwrap_or(usize::MAX)));
            file.seek(SeekFrom::Start(start))?;
            file.take(length as u64).read_to_end(&mut body)?;
            Ok(Bytes::from(body))
        });
        let body = read.await?;
        if body.len() == length { Ok(body) } else { Err(ends_early(key, &range)) }
    }

    async fn size(&self, key: &str) -> Result<Option<u64>, StoreError> {
        let path = self.path(key)?;
        let size = self.run(format!("head {key}"), move || fs::metadata(path).map(|metadata| metadata.len()));
        match size.await {
            Ok(size) => Ok(Some(size)),
            Err(error) if error.kind == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn delete(&self, key: &str) -> Result<(), StoreError> {
        let path = self.path(key)?;
        let deleted = self.run(format!("delete {key}"), move || {
            fs::remove_file(&path)?;
            path.parent().map_or(Ok(()), sync_directory)
        });
        match deleted.await {
            Err(error) if error.kind == ErrorKind::NotFound => Ok(()),
            other => other,
        }
    }

    async fn list(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<BlobInfo>, StoreError> {
        let (root, prefix, after) =
            (self.root.clone(), prefix.to_owned(), after.unwrap_or_default().to_owned());
        self.run(format!("list {prefix}"), move || {
            check_root(&root)?;
            let mut found = Vec::new();
            walk(&root, "", &prefix, &after, limit, &mut found)?;
            Ok(found)
        })
        .await
    }

    async fn probe(&self) -> Result<(), StoreError> {
        crate::store::blob::probe_create_only(self).await
    }
}

/// A blob that is being written to a temporary file.
#[derive(Debug)]
struct LocalUpload {
    blobs: LocalBlobs,
    key: String,
    path: PathBuf,
    temporary: Temporary,
    /// None while a part is written and once that has failed.
    file: Option<File>,
}

impl LocalUpload {
    fn take_file(&mut self) -> Result<File, StoreError> {
        let failed =
            || StoreError::new(ErrorKind::Unavailable, format!("put {}: an earlier write failed", self.key));
        self.file.take().ok_or_else(failed)
    }
}

#[async_trait]
impl BlobUpload for LocalUpload {
    async fn write(&mut self, part: Bytes) -> Result<(), StoreError> {
        let mut file = self.take_file()?;
        let written = self.blobs.run(format!("put {}", self.key), move || {
            file.write_all(&part)?;
            Ok(file)
        });
        self.file = Some(written.await?);
        Ok(())
    }

    async fn finish(mut self: Box<Self>, sha256: Digest) -> Result<(), StoreError> {
        let file = self.take_file()?;
        let Self { blobs, key, path, temporary, .. } = *self;
        let (root, making) = (blobs.root.clone(), blobs.making.clone());
        let published =
            blobs.run(format!("put {key}"), move || publish(&root, &making, &file, &temporary, &path));
        let is_new = published.await?;
        blobs.check_existing(&key, is_new, sha256).await
    }
}

/// The name for writing of a file. The link keeps the bytes; only this name goes,
/// when it is dropped or at the next start.
#[derive(Debug)]
struct Temporary(PathBuf);

impl Drop for Temporary {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_file(&self.0)
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(file = %self.0.display(), %error, "a temporary file stays");
        }
    }
}

/// Fails if `root` is not the directory that was opened: it has the one for
/// files that are being written.
fn check_root(root: &Path) -> io::Result<()> {
    fs::metadata(root.join(TEMPORARY)).map(drop)
}

/// Makes a file that is written seen at `path`; false if there is one already.
fn publish(
    root: &Path,
    making: &Mutex<()>,
    file: &File,
    temporary: &Temporary,
    path: &Path,
) -> io::Result<bool> {
    file.sync_all()?;
    let Some(directory) = path.parent() else { return Err(io::ErrorKind::InvalidInput.into()) };
    {
        let _making = making.lock().unwrap_or_else(PoisonError::into_inner);
        make_directories(root, directory)?;
    }
    let is_new = match fs::hard_link(&temporary.0, path) {
        Ok(()) => true,
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => false,
        Err(error) => return Err(error),
    };
    // Whoever put what is there already may not have come to it.
    sync_directory(directory)?;
    Ok(is_new)
}

/// Makes the directories from `root` down to `directory`, each synced into the
/// one above.
fn make_directories(root: &Path, directory: &Path) -> io::Result<()> {
    if directory == root || directory.is_dir() {
        return Ok(());
    }
    let Some(parent) = directory.parent() else { return Ok(()) };
    make_directories(root, parent)?;
    match fs::create_dir(directory) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    sync_directory(parent)
}

fn sync_directory(directory: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()
}

/// Appends to `found`, in the order of keys, up to `limit` blobs under
/// `directory` that begin with `prefix` and come after `after`.
fn walk(
    root: &Path,
    directory: &str,
    prefix: &str,
    after: &str,
    limit: usize,
    found: &mut Vec<BlobInfo>,
) -> io::Result<()> {
    let mut names = Vec::new();
    for file in fs::read_dir(root.join(directory))? {
        let file = file?;
        let Ok(name) = file.file_name().into_string() else { continue };
        if name.starts_with('.') {
            continue;
        }
        // With its slash a directory sorts as its keys do.
        let slash = if file.file_type()?.is_dir() { "/" } else { "" };
        names.push(format!("{directory}{name}{slash}"));
    }
    names.sort_unstable();
    for name in names {
        if found.len() >= limit {
            break;
        }
        if name.ends_with('/') {
            let may_match = name.starts_with(prefix) || prefix.starts_with(&name);
            let may_follow = name.as_str() > after || after.starts_with(&name);
            if may_match && may_follow {
                walk(root, &name, prefix, after, limit, found)?;
            }
        } else if name.starts_with(prefix) && name.as_str() > after {
            match fs::metadata(root.join(&name)) {
                Ok(metadata) => found.push(blob_info(name, &metadata)),
                // Erased meanwhile.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(())
}

fn blob_info(key: String, metadata: &fs::Metadata) -> BlobInfo {
    let modified =
        metadata.modified().ok().and_then(|at| at.duration_since(UNIX_EPOCH).ok()).unwrap_or_default();
    BlobInfo { key, bytes: metadata.len(), written_at: Micros::default().plus(modified) }
}

fn io_error(context: String, error: io::Error) -> StoreError {
    StoreError::caused(kind_of(&error), context, error)
}

fn kind_of(error: &io::Error) -> ErrorKind {
    match error.kind() {
        io::ErrorKind::NotFound => ErrorKind::NotFound,
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => ErrorKind::Full,
        _ => ErrorKind::Unavailable,
    }
}
