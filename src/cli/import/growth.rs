//! Where a file continues the session that a shorter version of it became.

use crate::cli::transcript::read;
use crate::client::Client;
use crate::codec::digest;
use crate::import::ImportedTurn;
use crate::model::Digest;
use crate::rpc::pb;
use bytes::Bytes;

/// Turns of a page.
const PAGE: i32 = 1_000;
/// Turns at the end of a file that a longer version of it may show otherwise.
const UNSETTLED_TURNS_MAX: usize = 4;

/// Where a file goes on.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Continuation {
    /// Turns of the file that the session has.
    pub(super) known: usize,
    /// Version of the session.
    pub(super) version: u64,
    /// The version to go back to first: the shorter file ended within turns that
    /// the longer one has whole.
    pub(super) back_to: Option<u64>,
}

/// Request ids of a file's turns, but for what they are persisted after: each
/// chains its turn to those before it, so that a longer version of the file has
/// the same.
pub(super) fn request_ids(turns: &[ImportedTurn]) -> Vec<String> {
    let mut chain = Digest::default();
    let ids = turns.iter().enumerate().map(|(i, turn)| {
        chain = turn
            .entries
            .iter()
            .fold(chain, |chain, entry| digest::prefix(chain, digest::sha256(&entry.payload)));
        format!("import-{i}-{chain}")
    });
    ids.collect()
}

/// Compares a file with its session; nothing if there is none yet.
pub(super) async fn find(
    client: &mut Client,
    session: &str,
    turns: &[ImportedTurn],
    ids: &[String],
) -> anyhow::Result<Option<Continuation>> {
    let request = pb::GetSessionRequest { name: session.to_owned() };
    let version = match client.sessions.get_session(request).await {
        Ok(found) => found.into_inner().version,
        Err(status) if status.code() == tonic::Code::NotFound => return Ok(None),
        Err(status) => return Err(status.into()),
    };
    let log = turns_of_log(client, session).await?;
    let found =
        log.iter().rev().find_map(|turn| Some((place_in_file(turn, ids)? + 1, turn.version, turn.last_seq)));
    let (known, known_version, known_seq) = found.unwrap_or_default();
    let later: Vec<_> = log.iter().filter(|turn| turn.last_seq > known_seq).collect();
    let back_to = if let [first, ..] = later.as_slice()
        && known < turns.len()
    {
        let is_imported = later.iter().all(|turn| turn.request_id.starts_with("import-"));
        let is_begun = is_imported && later.len() <= UNSETTLED_TURNS_MAX && {
            let begun = payloads(client, session, first.first_seq, version).await?;
            let whole = turns.iter().skip(known).flat_map(|turn| &turn.entries).map(|entry| &entry.payload);
            is_begun(&begun, whole.collect())
        };
        anyhow::ensure!(
            is_begun,
            "{session} goes on otherwise than the file from version {} on",
            first.version
        );
        Some(known_version)
    } else {
        None
    };
    Ok(Some(Continuation { known, version, back_to }))
}

/// Which turn of the file a turn is.
fn place_in_file(turn: &pb::Turn, ids: &[String]) -> Option<usize> {
    let place: usize = turn.request_id.strip_prefix("import-")?.split('-').next()?.parse().ok()?;
    // What it was persisted after stands behind.
    let rest = turn.request_id.strip_prefix(ids.get(place)?.as_str())?;
    rest.starts_with('-').then_some(place)
}

/// Whether some entries are what a shorter file showed of others: each is there
/// still or has grown since, as a message does to which the file adds a block.
/// They may have changed places, since files have results before their calls.
fn is_begun(begun: &[Bytes], mut whole: Vec<&Bytes>) -> bool {
    /// What closes a payload and stands further back in one that has grown.
    const CLOSING_BYTES: usize = 8;
    let has_grown = |begun: &Bytes, whole: &Bytes| {
        let kept = begun.get(..begun.len().saturating_sub(CLOSING_BYTES)).unwrap_or_default();
        begun.len() < whole.len() && whole.starts_with(kept)
    };
    begun.iter().all(|begun| {
        let same = whole.iter().position(|whole| begun == *whole);
        let found = same.or_else(|| whole.iter().position(|whole| has_grown(begun, whole)));
        found.map(|at| whole.swap_remove(at)).is_some()
    })
}

/// The turns that the session's log is made of, in order: without those that were
/// rewound.
async fn turns_of_log(client: &mut Client, session: &str) -> anyhow::Result<Vec<pb::Turn>> {
    let mut request =
        pb::ListTurnsRequest { name: session.to_owned(), page_size: PAGE, ..Default::default() };
    let (mut turns, mut newest) = (Vec::new(), u64::MAX);
    loop {
        let page = client.sessions.list_turns(request.clone()).await?.into_inner();
        for turn in page.turns {
            if turn.version > newest {
                continue;
            }
            if turn.kind() == pb::TurnKind::Rewind {
                newest = turn.base_version;
            }
            turns.push(turn);
        }
        request.page_token = page.next_page_token;
        if request.page_token.is_empty() {
            turns.reverse();
            return Ok(turns);
        }
    }
}

/// Payloads of the entries from `first_seq` on.
async fn payloads(
    client: &mut Client,
    session: &str,
    first_seq: u64,
    version: u64,
) -> anyhow::Result<Vec<Bytes>> {
    let request = pb::ReadTranscriptRequest {
        session: session.to_owned(),
        first_seq: Some(first_seq),
        last_seq: None,
        at_version: Some(version),
    };
    let mut payloads = Vec::new();
    read(client, request, |entry| {
        payloads.push(entry.payload);
        Ok(())
    })
    .await?;
    Ok(payloads)
}

#[cfg(test)]
mod tests {
    use super::is_begun;
    use bytes::Bytes;

    #[test]
    fn entries_are_begun_if_others_have_all_of_them() {
        const MESSAGE: &str = r#"{"role":"assistant","content":[{"type":"text"}]}"#;
        const GROWN: &str = r#"{"role":"assistant","content":[{"type":"text"},{"type":"text"}]}"#;
        const OTHER: &str = r#"{"role":"user","content":"something else, and longer than the other one"}"#;
        let cases: [(&[&'static str], &[&'static str], bool); 8] = [
            (&[MESSAGE], &[MESSAGE, OTHER], true),
            (&[MESSAGE], &[GROWN], true),
            (&[MESSAGE, OTHER], &[GROWN, OTHER], true),
            (&[OTHER, MESSAGE], &[GROWN, MESSAGE, OTHER], true),
            (&[MESSAGE, MESSAGE], &[MESSAGE, OTHER], false),
            (&[MESSAGE], &[OTHER], false),
            (&[GROWN], &[MESSAGE], false),
            (&[MESSAGE, OTHER], &[MESSAGE], false),
        ];
        for (begun, whole, expected) in cases {
            let [begun, whole] =
                [begun, whole].map(|texts| texts.iter().map(|text| Bytes::from(*text)).collect::<Vec<_>>());
            let found = is_begun(&begun, whole.iter().collect());
            assert_eq!(found, expected, "{begun:?} {whole:?}");
        }
    }
}
