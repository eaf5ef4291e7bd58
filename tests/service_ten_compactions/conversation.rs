//! What is said in the sessions that are compacted.

use crate::messages::{result, user};
use crate::recorded::{entries_of, folder, format_of};
use crate::service::message;
use serde_json::json;
use turnkeep::import::{Options, Thread, import};
use turnkeep::rpc::pb;

/// A statement of the user's that every window must hold.
#[derive(Debug)]
pub(crate) struct Demand {
    pub(crate) text: String,
    /// Its entry, if the test put it there; the others are the recording's own.
    pub(crate) planted: Option<u64>,
    /// Number of the pass by which its entry left the window.
    pub(crate) left_at: Option<usize>,
}

/// What a user forbids and demands amid the work, in each language that is looked for.
pub(crate) const PLANTED: [&str; 22] = [
    "You must not rename the table `users`.",
    "Never print the value of API_TOKEN, not even in tests.",
    "Du darfst die Datei config/prod.yaml auf keinen Fall ändern.",
    "Il ne faut jamais supprimer le dossier données/été.",
    "No borres nunca las copias de seguridad de /srv/año-2025.",
    "Não apague os registros de produção em São Paulo.",
    "绝对不要修改生产数据库 orders_v2。",
    "秘密鍵は絶対にログに出力しないでください。",
    r#"You must not delete C:\data\*.bak or anything that is called "old"."#,
    "Always run the suite with --locked before a commit.",
    "Only use the standard library in crates/core.",
    "Don’t touch migrations/0007_split.sql — it has been applied.",
    "Verwende nur Bibliotheken mit MIT-Lizenz.",
    "Utilise uniquement le port 8443 pour le proxy.",
    "Usa solo la rama release/4.2 para los cambios.",
    "Use apenas a versão 15.18 do banco.",
    "必须使用 Go 1.23 编译。",
    "本番データには触らないこと。",
    "Under no circumstances may a request block for more than 250 ms.",
    "Please leave the file vendor/zlib/README untouched.",
    "You must never log an e-mail address such as ana+test@example.org.",
    "Push to main only after I have said so, and never with --force.",
];

/// Files whose longest threads are played one after the other in one session.
const SESSIONS: [&[&str]; 2] = [
    &["claude-code/cli-9e2434f3-2331entries.jsonl", "claude-code/cli-6113e919-compactions.jsonl"],
    &["codex-rollout/gitsync-019d6d29-longest.jsonl"],
];

/// Recorded sessions, with their names and turns; none, with a word about it, if they are not
/// there.
pub(crate) fn recordings() -> Vec<(&'static str, pb::WireFormat, Vec<Vec<pb::NewEntry>>)> {
    let Some(folder) = folder() else { return vec![] };
    let bytes = |thread: &Thread| {
        let entries = thread.turns.iter().flat_map(|turn| &turn.entries);
        entries.map(|entry| entry.payload.len()).sum::<usize>()
    };
    let longest = |file: &&str| {
        let content = std::fs::read(folder.join(file)).unwrap().into();
        let threads = import(&content, None, Options { verbatim: false }).unwrap().threads;
        threads.into_iter().max_by_key(bytes).unwrap()
    };
    let session = |files: &[&'static str]| {
        let threads: Vec<_> = files.iter().map(longest).collect();
        let turns = threads.iter().flat_map(|thread| thread.turns.iter().map(entries_of));
        (files[0], format_of(&threads[0]), turns.collect())
    };
    SESSIONS.into_iter().map(session).collect()
}

/// Steps of a conversation that is made up: small, so that a small model can sum them up.
pub(crate) fn made_up() -> (pb::WireFormat, Vec<Vec<pb::NewEntry>>) {
    const FORMAT: pb::WireFormat = pb::WireFormat::OpenaiChat;
    const PARTS: [&str; 5] =
        ["auth/token.py", "api/upload.py", "db/pool.py", "jobs/retry.py", "web/forms.py"];
    const WHAT: [&str; 4] = ["a missing timeout", "a leaked handle", "a wrong default", "a race on start-up"];
    let mut turns =
        vec![vec![message(user(FORMAT, "The upload service drops connections. Find out why, and mend it."))]];
    for number in 0..400 {
        let (path, what) = (PARTS[number % PARTS.len()], WHAT[number % WHAT.len()]);
        let line = 17 + number * 13 % 200;
        let id = format!("call_{number}");
        let said = format!("Step {number}: I suspect {what} in {path}:{line}, so I read what stands there.");
        let call = json!({"role": "assistant", "content": said, "tool_calls": [{
            "id": id, "type": "function",
            "function": {"name": "read_file", "arguments": json!({"path": path, "line": line}).to_string()},
        }]});
        let lines =
            (line..line + 8).map(|line| format!("{line}: handler_{line}(request, timeout={number})\n"));
        let found = result(FORMAT, &id, "read_file", &lines.collect::<String>());
        turns.push(vec![message(call.to_string()), message(found)]);
    }
    (FORMAT, turns)
}
