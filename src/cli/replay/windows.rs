//! A file of the windows that a replay was served.

use crate::cli::output::name;
use crate::cli::window::cut_json;
use crate::client::ClientError;
use crate::format::to_single_line;
use crate::rpc::pb;
use anyhow::Context as _;
use bytes::Bytes;
use serde_json::value::RawValue;
use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};

/// The file, with a line for each restore.
pub(super) struct Windows {
    path: PathBuf,
    lines: BufWriter<File>,
}

impl Windows {
    /// Makes the file; what was in it is lost.
    pub(super) fn create(path: &Path) -> anyhow::Result<Self> {
        let file = File::create(path).with_context(|| format!("cannot write {}", path.display()))?;
        Ok(Self { path: path.to_owned(), lines: BufWriter::new(file) })
    }

    /// For the windows of a thread of a file that is replayed.
    pub(super) fn of_thread<'a>(&'a mut self, file: &'a str, thread: usize) -> OfThread<'a> {
        OfThread { windows: self, file, thread }
    }
}

/// The windows of one thread.
pub(super) struct OfThread<'a> {
    windows: &'a mut Windows,
    file: &'a str,
    /// Its place in the file, from 0.
    thread: usize,
}

impl OfThread<'_> {
    /// Writes what was served, or why nothing was, for a version.
    pub(super) fn write(
        &mut self,
        version: u64,
        restored: &Result<pb::WindowHeader, ClientError>,
        items: &[pb::WindowItem],
    ) -> anyhow::Result<()> {
        let (file, thread) = (self.file, self.thread);
        let Windows { path, lines } = self.windows;
        let written = match restored {
            Ok(header) => {
                let payloads: Vec<_> =
                    items.iter().map(|item| to_single_line(item.payload.clone())).collect();
                serde_json::to_writer(&mut *lines, &Served::new(file, thread, header, items, &payloads)?)
            }
            Err(refusal) => {
                let refused = refusal.to_string();
                serde_json::to_writer(&mut *lines, &Refused { file, thread, version, refused })
            }
        };
        // Each line at once, so that whoever reads along waits for none.
        written
            .map_err(std::io::Error::from)
            .and_then(|()| lines.write_all(b"\n"))
            .and_then(|()| lines.flush())
            .with_context(|| format!("cannot write {}", path.display()))
    }
}

/// A restore that no window fitted.
#[derive(serde::Serialize)]
struct Refused<'a> {
    file: &'a str,
    thread: usize,
    version: u64,
    refused: String,
}

/// A window.
#[derive(serde::Serialize)]
struct Served<'a> {
    file: &'a str,
    thread: usize,
    version: u64,
    format: String,
    tokens: u64,
    fits: Option<bool>,
    cut: Option<serde_json::Value>,
    repairs: Vec<serde_json::Value>,
    next: String,
    items: Vec<Item<'a>>,
}

/// An item of it. Its entries are not told where the worker's own turn was extended
/// without a word of them.
#[derive(serde::Serialize)]
struct Item<'a> {
    origin: String,
    seqs: &'a [u64],
    payload: &'a RawValue,
}

impl<'a> Served<'a> {
    fn new(
        file: &'a str,
        thread: usize,
        header: &pb::WindowHeader,
        items: &'a [pb::WindowItem],
        payloads: &'a [Bytes],
    ) -> anyhow::Result<Self> {
        let items = items.iter().zip(payloads).map(|(item, payload)| {
            let origin = name(item.origin().as_str_name(), "ITEM_ORIGIN_");
            Ok(Item { origin, seqs: &item.seqs, payload: serde_json::from_slice(payload)? })
        });
        Ok(Self {
            file,
            thread,
            version: header.version,
            format: name(header.format().as_str_name(), "WIRE_FORMAT_"),
            tokens: header.tokens_after,
            fits: header.fits,
            cut: header.cut.as_ref().map(cut_json),
            repairs: header.repairs.iter().map(repair_json).collect(),
            next: name(header.next().as_str_name(), "NEXT_STEP_"),
            items: items.collect::<anyhow::Result<_>>()?,
        })
    }
}

fn repair_json(repair: &pb::Repair) -> serde_json::Value {
    serde_json::json!({
        "kind": name(repair.kind().as_str_name(), "REPAIR_KIND_"),
        "seqs": repair.seqs,
        "id": repair.id,
        "detail": repair.detail,
    })
}
