//! The source keeps its layers: a module uses only what lies below it.
//!
//! In one crate the compiler does not see to that, so this reads the source.
//! What a module uses is taken from its `use` declarations and from all paths
//! that begin with `crate`, `super` or `self`; tests inside the source are left
//! out.
#![cfg(test)]
#![cfg(feature = "server")]

#[path = "layering/source.rs"]
mod source;

use source::{Module, modules};
use std::collections::{BTreeMap, BTreeSet};

/// The layers from the bottom up, in the order of src/lib.rs: each may use those
/// before it. `main` stands for src/main.rs.
const LAYERS: [&str; 23] = [
    "limits",
    "clock",
    "entropy",
    "model",
    "format",
    "markdown",
    "tokens",
    "preview",
    "window",
    "summary",
    "codec",
    "store",
    "provider",
    "engine",
    "settings",
    "telemetry",
    "rpc",
    "import",
    "export",
    "server",
    "client",
    "cli",
    "main",
];

/// Modules of one layer that use others of it which are neither their parents
/// nor their children.
const SIDEWAYS: &[(&str, &[&str])] = &[
    ("cli::audit", &["cli::compactions", "cli::output"]),
    ("cli::compact", &["cli::compactions", "cli::output"]),
    ("cli::compactions", &["cli::output", "cli::pin"]),
    ("cli::episode", &["cli::output"]),
    ("cli::fsck", &["cli::output"]),
    ("cli::import", &["cli::output"]),
    ("cli::import::growth", &["cli::transcript"]),
    ("cli::memory", &["cli::episode", "cli::output"]),
    ("cli::migrate", &["cli::output"]),
    ("cli::models", &["cli::output"]),
    ("cli::note", &["cli::output"]),
    ("cli::pin", &["cli::output"]),
    ("cli::replay", &["cli::import", "cli::output", "cli::session", "cli::transcript"]),
    ("cli::replay::windows", &["cli::output", "cli::window"]),
    ("cli::session", &["cli::output"]),
    ("cli::tool_output", &["cli::output"]),
    ("cli::tool_output::tools", &["cli::output"]),
    ("cli::transcript", &["cli::import", "cli::output"]),
    ("cli::transcript::search", &["cli::output"]),
    ("cli::window", &["cli::compactions", "cli::output"]),
    ("codec::manifest", &["codec::frame", "codec::segment"]),
    ("codec::output::index", &["codec::digest", "codec::frame"]),
    ("codec::output::writer", &["codec::frame", "codec::output::index"]),
    ("codec::segment", &["codec::digest", "codec::frame", "codec::line"]),
    ("engine::cache", &["engine::restore"]),
    ("engine::calibration", &["engine::compact"]),
    ("engine::compact", &["engine::leaving", "engine::log", "engine::restore", "engine::window_state"]),
    ("engine::continuation", &["engine::leaving", "engine::pins", "engine::sessions"]),
    ("engine::delete", &["engine::keys"]),
    ("engine::fork", &["engine::persist", "engine::sessions"]),
    ("engine::fsck", &["engine::error", "engine::keys", "engine::log"]),
    ("engine::fsck::notes", &["engine::notes"]),
    ("engine::fsck::outputs", &["engine::error", "engine::output_blob"]),
    ("engine::held_outputs", &["engine::keys", "engine::upkeep"]),
    ("engine::interactive", &["engine::compact", "engine::leaving", "engine::summaries"]),
    ("engine::leaving", &["engine::compaction_options", "engine::log"]),
    ("engine::log", &["engine::segments"]),
    ("engine::offload", &["engine::keys"]),
    ("engine::persist", &["engine::cache", "engine::log"]),
    ("engine::persist::commit", &["engine::cache", "engine::persist::draft", "engine::persist::request"]),
    ("engine::persist::draft", &["engine::persist::prepared", "engine::persist::request"]),
    ("engine::persist::prepared", &["engine::persist::refs", "engine::persist::request"]),
    ("engine::persist::report", &["engine::persist::prepared"]),
    (
        "engine::persist::results",
        &["engine::keys", "engine::persist::commit", "engine::persist::prepared", "engine::persist::request"],
    ),
    ("engine::pins", &["engine::compact", "engine::leaving", "engine::log", "engine::notes"]),
    ("engine::read", &["engine::log"]),
    ("engine::read_output", &["engine::output_blob"]),
    ("engine::rebuild", &["engine::fsck", "engine::persist"]),
    ("engine::rebuild::contested", &["engine::rebuild::evidence"]),
    ("engine::rebuild::evidence", &["engine::fsck", "engine::keys", "engine::rebuild::outputs"]),
    ("engine::rebuild::outputs", &["engine::fsck", "engine::persist", "engine::rebuild::evidence"]),
    ("engine::rebuild::windows", &["engine::fsck", "engine::rebuild::evidence"]),
    ("engine::relief", &["engine::compact", "engine::restore"]),
    ("engine::restore", &["engine::error", "engine::log", "engine::window_state"]),
    ("engine::restore::assembled", &["engine::window_state"]),
    (
        "engine::restore::assembly",
        &[
            "engine::leaving",
            "engine::log",
            "engine::restore::assembled",
            "engine::segments",
            "engine::window_state",
        ],
    ),
    ("engine::rewind", &["engine::persist"]),
    ("engine::roll_up", &["engine::keys", "engine::upkeep"]),
    ("engine::seal", &["engine::keys", "engine::upkeep"]),
    ("engine::search", &["engine::log", "engine::pattern", "engine::read", "engine::search_output"]),
    ("engine::search::finder", &["engine::search_output"]),
    ("engine::search_output", &["engine::output_blob", "engine::pattern", "engine::read_output"]),
    ("engine::segments", &["engine::error"]),
    ("engine::sessions", &["engine::persist"]),
    ("engine::snapshot", &["engine::persist"]),
    ("engine::summarize_now", &["engine::compact", "engine::interactive"]),
    ("engine::sweep", &["engine::keys", "engine::upkeep"]),
    ("engine::window_state", &["engine::log"]),
    ("format::anthropic", &["format::json", "format::parts", "format::reading"]),
    ("format::bedrock", &["format::json", "format::parts", "format::reading"]),
    ("format::calls", &["format::openai_responses", "format::reading"]),
    ("format::canonical", &["format::json"]),
    ("format::gemini", &["format::json", "format::parts", "format::reading"]),
    ("format::inline_media", &["format::json", "format::reading"]),
    ("format::openai_chat", &["format::json", "format::openai_content", "format::parts", "format::reading"]),
    ("format::openai_content", &["format::json", "format::parts", "format::reading"]),
    (
        "format::openai_responses",
        &["format::json", "format::openai_content", "format::parts", "format::reading"],
    ),
    ("format::parts", &["format::json", "format::reading"]),
    ("format::payload", &["format::json"]),
    ("format::result_content", &["format::json"]),
    ("format::shown", &["format::json", "format::reading", "format::texts"]),
    ("format::texts", &["format::json", "format::reading"]),
    ("import::claude_code", &["import::file", "import::json", "import::verbatim"]),
    ("import::claude_code::lines", &["import::json"]),
    ("import::claude_code::messages", &["import::file", "import::json", "import::turns"]),
    ("import::codex", &["import::file", "import::json", "import::turns", "import::verbatim", "import::wire"]),
    ("import::detect", &["import::file", "import::json", "import::wire"]),
    ("import::plain", &["import::file", "import::json", "import::turns", "import::verbatim", "import::wire"]),
    ("import::plain::document", &["import::json"]),
    ("import::turns", &["import::json", "import::verbatim"]),
    ("import::verbatim", &["import::file", "import::json", "import::turns"]),
    ("import::wire", &["import::json"]),
    ("model::turn", &["model::window"]),
    ("preview::ends", &["preview::clean"]),
    ("preview::excerpt", &["preview::clean"]),
    ("rpc::admission", &["rpc::status"]),
    ("rpc::compactions", &["rpc::convert", "rpc::pages", "rpc::pb", "rpc::transcript_service"]),
    ("rpc::convert", &["rpc::pb"]),
    ("rpc::convert::profile", &["rpc::pb"]),
    ("rpc::details", &["rpc::status"]),
    ("rpc::memory_service", &["rpc::compactions", "rpc::convert", "rpc::observe", "rpc::pages", "rpc::pb"]),
    ("rpc::model_service", &["rpc::convert", "rpc::observe", "rpc::pb"]),
    ("rpc::observe", &["rpc::status"]),
    ("rpc::search", &["rpc::convert", "rpc::pages", "rpc::pb"]),
    ("rpc::session_service", &["rpc::convert", "rpc::observe", "rpc::pages", "rpc::pb"]),
    ("rpc::tool_output_service", &["rpc::convert", "rpc::observe", "rpc::pages", "rpc::pb"]),
    (
        "rpc::transcript_service",
        &["rpc::admission", "rpc::convert", "rpc::observe", "rpc::pb", "rpc::search"],
    ),
    ("settings::tests", &["settings::variables"]),
    ("store::faulty", &["store::blob"]),
    ("store::local", &["store::blob"]),
    ("store::metered", &["store::blob"]),
    ("store::probed", &["store::blob"]),
    ("store::s3", &["store::blob"]),
    ("store::s3::upload", &["store::blob"]),
    ("store::sql", &["store::meta"]),
    (
        "store::sql::checks",
        &[
            "store::meta",
            "store::sql::connection",
            "store::sql::notes",
            "store::sql::outputs",
            "store::sql::rows",
            "store::sql::seals",
            "store::sql::sessions",
            "store::sql::turns",
            "store::sql::window_states",
        ],
    ),
    (
        "store::sql::deletions",
        &[
            "store::meta",
            "store::sql::connection",
            "store::sql::rows",
            "store::sql::seals",
            "store::sql::sessions",
        ],
    ),
    (
        "store::sql::held_outputs",
        &["store::meta", "store::sql::connection", "store::sql::rows", "store::sql::seals"],
    ),
    ("store::sql::migrations", &["store::sql::connection"]),
    (
        "store::sql::notes",
        &["store::meta", "store::sql::connection", "store::sql::rows", "store::sql::sessions"],
    ),
    (
        "store::sql::outputs",
        &[
            "store::meta",
            "store::sql::connection",
            "store::sql::deletions",
            "store::sql::held_outputs",
            "store::sql::rows",
        ],
    ),
    ("store::sql::postgres", &["store::sql::connection", "store::sql::pool"]),
    ("store::sql::rows", &["store::meta", "store::sql::connection"]),
    ("store::sql::seals", &["store::meta", "store::sql::connection", "store::sql::rows"]),
    (
        "store::sql::sessions",
        &[
            "store::meta",
            "store::sql::connection",
            "store::sql::notes",
            "store::sql::rows",
            "store::sql::seals",
            "store::sql::turns",
            "store::sql::window_states",
        ],
    ),
    ("store::sql::sqlite", &["store::sql::connection", "store::sql::pool"]),
    ("store::sql::sweeps", &["store::meta", "store::sql::connection", "store::sql::rows"]),
    (
        "store::sql::turns",
        &[
            "store::meta",
            "store::sql::connection",
            "store::sql::held_outputs",
            "store::sql::outputs",
            "store::sql::rows",
            "store::sql::seals",
            "store::sql::sessions",
            "store::sql::window_states",
        ],
    ),
    ("store::sql::window_states", &["store::meta", "store::sql::connection", "store::sql::rows"]),
    ("summary::audit", &["summary::literals"]),
    ("summary::extract", &["summary::fit", "summary::ledger", "summary::literals", "summary::said"]),
    ("summary::ledger", &["summary::fit", "summary::said"]),
    ("summary::ledger::calls", &["summary::ledger::patch", "summary::ledger::shell"]),
    ("summary::ledger::outcome", &["summary::fit", "summary::literals"]),
    ("summary::ledger::shell", &["summary::fit", "summary::ledger::calls", "summary::ledger::patch"]),
    (
        "summary::ledger::stale",
        &["summary::ledger::calls", "summary::ledger::outcome", "summary::ledger::shell"],
    ),
    ("summary::literals", &["summary::said"]),
    ("summary::literals::scan", &["summary::literals::words"]),
    ("summary::prompt", &["summary::fit", "summary::ledger", "summary::said"]),
    ("tokens::provider_limits", &["tokens::catalogue"]),
    (
        "window::assembler",
        &[
            "window::edit",
            "window::entries",
            "window::prepared",
            "window::provider_calls",
            "window::round",
            "window::view",
        ],
    ),
    ("window::entries", &["window::edit", "window::round"]),
    ("window::head", &["window::assembler", "window::prepared"]),
    ("window::messages", &["window::edit", "window::round"]),
    ("window::prepared", &["window::admit", "window::round"]),
    ("window::round", &["window::edit", "window::entries", "window::messages"]),
    ("window::snip", &["window::view"]),
    ("window::truncate", &["window::view"]),
    ("window::view", &["window::assembler", "window::round"]),
];

/// Most lines of a source file.
const LINES_MAX: usize = 600;

/// Names, and the modules that may name them, with the modules below them.
const NAMES: [(&[&str], &[&str]); 5] = [
    (&["Status"], &["rpc", "client", "cli"]),
    // The composition root takes the generated servers' names alone.
    (&["pb"], &["rpc", "client", "cli", "server"]),
    (&["tonic", "tonic_types", "prost", "prost_types"], &["rpc", "client", "cli", "server"]),
    (
        &[
            "LocalBlobs",
            "S3Blobs",
            "S3Options",
            "SqlMetaStore",
            "PostgresOptions",
            "FaultyBlobs",
            "sqlx",
            "aws_sdk_s3",
        ],
        &["store", "server"],
    ),
    (&["SystemTime", "Instant"], &["clock"]),
];

fn layer(module: &str) -> &str {
    module.split("::").next().unwrap()
}

fn rank(module: &str) -> Option<usize> {
    LAYERS.iter().position(|known| *known == layer(module))
}

fn is_inside(module: &str, outer: &str) -> bool {
    module == outer || module.strip_prefix(outer).is_some_and(|rest| rest.starts_with("::"))
}

/// The module that a path leads to: the longest part of it that is one.
fn target<'a>(path: &'a str, known: &BTreeSet<&str>) -> Option<&'a str> {
    let ends = path.match_indices("::").map(|(i, _)| i).chain([path.len()]);
    ends.map(|end| &path[..end]).filter(|module| known.contains(module)).last()
}

#[test]
fn every_module_has_a_layer_and_the_layers_stand_as_in_lib() {
    let modules = modules();
    let missing: Vec<_> =
        modules.iter().filter(|module| rank(&module.name).is_none()).map(|m| &m.name).collect();
    assert!(missing.is_empty(), "not in LAYERS: {missing:?}");
    let declared = source::declared("lib.rs");
    assert_eq!(declared, LAYERS[..LAYERS.len() - 1], "the order of src/lib.rs and of LAYERS");
}

#[test]
fn the_code_map_has_the_layers_in_their_order() {
    let page = include_str!("../ARCHITECTURE.md");
    let (_, map) = page.split_once("\n## The code map\n").unwrap();
    let map = map.split("\n## ").next().unwrap();
    let rows = map.lines().filter_map(|line| line.strip_prefix('|')?.split_once('|'));
    let cells = rows.map(|(modules, _)| modules.trim()).skip_while(|cell| *cell != "---").skip(1);
    let named: Vec<_> = cells.flat_map(|cell| cell.split(", ")).map(|name| name.trim_matches('`')).collect();
    let (main, layers) = LAYERS.split_last().unwrap();
    assert_eq!((named.as_slice(), *main), (layers, "main"), "the order of ARCHITECTURE.md and of LAYERS");
}

#[test]
fn modules_use_only_what_lies_below_them() {
    let modules = modules();
    let known: BTreeSet<_> = modules.iter().map(|module| module.name.as_str()).collect();
    let sideways: BTreeMap<_, _> = SIDEWAYS.iter().copied().collect();
    assert_eq!(sideways.len(), SIDEWAYS.len(), "SIDEWAYS names a module twice");
    let mut wrong = BTreeSet::new();
    let mut used = BTreeSet::new();
    for module in &modules {
        for path in &module.paths {
            let Some(target) = target(path, &known) else { continue };
            let (from, to) = (module.name.as_str(), target);
            if layer(from) == layer(to) {
                let is_related = is_inside(from, to) || is_inside(to, from);
                let is_declared = sideways.get(from).is_some_and(|allowed| allowed.contains(&to));
                if !is_related && !is_declared {
                    wrong.insert(format!("{from} uses {to} beside it"));
                }
                if !is_related {
                    used.insert((from, to));
                }
            } else if rank(from) < rank(to) {
                wrong.insert(format!("{from} uses {to} above it"));
            }
        }
    }
    for (from, allowed) in SIDEWAYS {
        for to in *allowed {
            if !used.contains(&(*from, *to)) {
                wrong.insert(format!("SIDEWAYS lets {from} use {to}, which it does not"));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn wire_types_databases_and_clocks_are_named_only_where_they_belong() {
    let mut wrong = BTreeSet::new();
    for Module { name, idents, .. } in &modules() {
        for (names, homes) in NAMES {
            let is_home = homes.iter().any(|home| is_inside(name, home));
            for found in names.iter().filter(|found| !is_home && idents.contains(**found)) {
                // `EntryKind::Status` is a kind of entry.
                if *found != "Status" || idents.contains("tonic") {
                    wrong.insert(format!("{name} names {found}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn source_files_are_short_enough_to_be_read() {
    let mut wrong = Vec::new();
    for Module { file, lines, .. } in modules() {
        if lines > LINES_MAX {
            wrong.push(format!("{file} has {lines} lines"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
