//! Files that grow and are imported again and again.

use crate::backends::{Backend, on_embedded_backend};
use crate::command::Served;
use crate::recorded::folder;
use crate::serve;
use serde_json::Value;
use std::fs;
use std::path::Path;

on_embedded_backend!(
    a_file_that_grows_line_by_line_becomes_the_session_of_the_whole_file,
    a_recorded_file_that_grew_becomes_the_session_of_the_whole_file,
);

/// Imports each version of a file into one session, and the last one into
/// another: asserts that both hold the same.
fn assert_grows(served: &Served, directory: &Path, source: &str, name: &str, versions: &[&[u8]]) {
    let file = directory.join("grown.jsonl");
    for verbatim in [false, true] {
        let import = |bytes: &[u8], session: &str| {
            fs::write(&file, bytes).unwrap();
            let mut args = vec!["transcript", "import", file.to_str().unwrap(), "--source", source];
            args.extend(["--session", session]);
            args.extend(verbatim.then_some("--verbatim"));
            served.run(&args).output();
        };
        let log = |session: &str| -> Vec<(Value, Value)> {
            let log = served.run(&["transcript", "show", session, "--json"]).json();
            log.into_iter().map(|entry| (entry["kind"].clone(), entry["payload"].clone())).collect()
        };
        let (grown, at_once) = (format!("{name}-{verbatim}"), format!("{name}-{verbatim}-at-once"));
        for version in versions {
            import(version, &grown);
        }
        let whole = versions.last().unwrap();
        import(whole, &grown);
        import(whole, &at_once);
        assert!(log(&grown) == log(&at_once), "{name}");
        if verbatim {
            let exported = served.run(&["transcript", "export", &grown, "--verbatim"]).output();
            assert!(exported.as_bytes() == *whole, "{name}");
        }
    }
}

async fn a_file_that_grows_line_by_line_becomes_the_session_of_the_whole_file(backend: Backend) {
    let served = serve(&backend).await;
    for (source, name) in [
        ("claude-code", "grouping"),
        ("claude-code", "sub-agents"),
        ("codex", "rollout"),
        ("openai-chat", "messages"),
    ] {
        let whole = fs::read(format!("tests/data/import/{source}/{name}.jsonl")).unwrap();
        let ends = whole.iter().enumerate().filter(|(_, byte)| **byte == b'\n').map(|(at, _)| at + 1);
        let versions: Vec<_> = ends.map(|end| &whole[..end]).collect();
        assert_grows(&served, backend.data_dir(), source, name, &versions);
    }
    served.stop();
}

async fn a_recorded_file_that_grew_becomes_the_session_of_the_whole_file(backend: Backend) {
    let Some(folder) = folder() else { return };
    let served = serve(&backend).await;
    let mut files: Vec<_> =
        fs::read_dir(folder.join("claude-code-growth")).unwrap().collect::<Result<_, _>>().unwrap();
    files.sort_by_key(fs::DirEntry::path);
    let versions: Vec<_> = files.iter().map(|file| fs::read(file.path()).unwrap()).collect();
    let versions: Vec<_> = versions.iter().map(Vec::as_slice).collect();
    assert_grows(&served, backend.data_dir(), "claude-code", "recorded", &versions);
    let rollout = fs::read(folder.join("codex-rollout/gitsync-019ddeed-image-orphan.jsonl")).unwrap();
    let ends = [129_287, 205_451, 378_455, 427_394, 465_099, 514_511, 553_776, 577_222];
    let versions = ends.map(|end| &rollout[..end]);
    assert_grows(&served, backend.data_dir(), "codex", "orphan", &versions);
    served.stop();
}
