//! What is stored for ever: read as it was written, whatever version wrote it,
//! and by others' tools.
#![cfg(test)]
#![cfg(feature = "server")]

use bytes::Bytes;
use proptest::prelude::*;
use std::fs;
use turnkeep::clock::Micros;
use turnkeep::codec::segment::{self, Decoded, Header};
use turnkeep::codec::{CodecError, digest, frame, line, manifest};
use turnkeep::limits::SEGMENT_FRAME_RAW_BYTES;
use turnkeep::model::{Entry, EntryKind, Seq, Version};

/// Blobs that the first version of the format wrote, and what they say.
const SEGMENTS: [(&str, usize); 2] = [("segment-v1", 2), ("segment-v1-rewind", 0)];

fn stored(name: &str) -> Bytes {
    fs::read(format!("tests/data/codec/{name}.zst")).unwrap().into()
}

fn text(name: &str) -> String {
    fs::read_to_string(format!("tests/data/codec/{name}")).unwrap()
}

#[test]
fn segments_of_the_first_format_are_read_and_would_be_written_the_same() {
    for (name, entries) in SEGMENTS {
        let text = text(&format!("{name}.jsonl"));
        let decoded = segment::decode(&stored(name), text.len() as u64).unwrap();
        assert_eq!(decoded.entries.len(), entries);
        let header = decoded.header().unwrap();
        let encoded = segment::encode(&header, &decoded.lines).unwrap();
        let again = frame::decompress(&encoded.stored, text.len()).unwrap();
        assert_eq!(std::str::from_utf8(&again).unwrap(), text);
    }
}

#[test]
fn manifests_of_the_first_format_are_read_and_would_be_written_the_same() {
    for (name, window_states) in [("manifest-v1", 0), ("manifest-v1-windows", 2)] {
        let text = text(&format!("{name}.json"));
        let decoded = manifest::decode(&stored(name)).unwrap();
        assert_eq!(decoded.window_states.len(), window_states);
        let again = frame::decompress(&manifest::encode(&decoded).unwrap(), text.len()).unwrap();
        assert_eq!(std::str::from_utf8(&again).unwrap(), text);
    }
}

/// As `zstdcat SEGMENT | jq` does.
#[test]
fn any_zstd_and_any_json_parser_read_a_segment() {
    for (name, entries) in SEGMENTS {
        let plain = zstd::decode_all(&*stored(name)).unwrap();
        let lines: Vec<serde_json::Value> =
            serde_json::Deserializer::from_slice(&plain).into_iter().collect::<Result<_, _>>().unwrap();
        assert_eq!(lines.len(), entries + 1);
        assert_eq!(lines[0]["turnkeep"], "segment");
        assert!(lines[1..].iter().all(|line| line["payload"].is_object()));
    }
}

#[test]
fn what_a_newer_version_wrote_is_told_from_damage() {
    let change = |text: &str, from: &str, to: &str| {
        assert!(text.contains(from));
        frame::compress(text.replacen(from, to, 1).as_bytes()).unwrap()
    };
    let newer = CodecError::NewerFormat { found: 2, newest: 1 };
    let segment_text = text("segment-v1.jsonl");
    let decoded = |bytes: &Bytes| segment::decode(bytes, 1 << 20);
    let later = decoded(&change(&segment_text, "\"min_reader\":1", "\"min_reader\":2"));
    assert_eq!(later.unwrap_err(), newer);
    // What a reader need not know does not keep it from reading.
    let compatible = decoded(&change(&segment_text, "\"format\":1,", "\"format\":2,\"new\":{},"));
    assert_eq!(compatible.unwrap().header().unwrap().format, 2);
    let manifest_text = text("manifest-v1.json");
    let later = change(&manifest_text, "\"format\":1", "\"format\":2");
    assert_eq!(manifest::decode(&later).unwrap_err(), newer);
    let other = change(&segment_text, "\"turnkeep\":\"segment\"", "\"turnkeep\":\"other\"");
    assert!(matches!(decoded(&other), Err(CodecError::Damaged(_))));
}

/// A header of a segment of those entries.
fn header(entries: &[Entry]) -> Header {
    let text = text("segment-v1.jsonl");
    let header = segment::decode(&stored("segment-v1"), text.len() as u64).unwrap().header().unwrap();
    let ends = entries.first().zip(entries.last());
    let (first_seq, last_seq) = ends.map_or((Seq(2), Seq(1)), |(first, last)| (first.seq, last.seq));
    Header { first_seq, last_seq, ..header }
}

fn entries() -> impl Strategy<Value = Vec<Entry>> {
    let payload = prop_oneof![
        Just("{}".to_owned()),
        Just(r#"{"n":12345678901234567890123,"n":1.0e+2,"\ud800":"\u0000"}"#.to_owned()),
        any::<String>().prop_map(|text| serde_json::json!({"role": "user", "content": text}).to_string()),
    ];
    let entry = (any::<u64>(), any::<i64>(), any::<bool>(), any::<u64>(), payload);
    let entry = entry.prop_map(|(version, at, is_meta, tokens, payload)| Entry {
        seq: Seq(0),
        version: Version(version),
        at: Micros(at),
        kind: if is_meta { EntryKind::Meta } else { EntryKind::Message },
        tokens,
        payload: payload.into(),
    });
    prop::collection::vec(entry, 0..20)
}

/// The entries with seqs that follow upon one another.
fn in_order(mut parts: Vec<Vec<Entry>>) -> Vec<Vec<Entry>> {
    let entries = parts.iter_mut().flatten();
    entries.zip(1..).for_each(|(entry, seq)| entry.seq = Seq(seq));
    parts
}

fn lines_of(entries: &[Entry]) -> Bytes {
    let mut lines = Vec::new();
    for entry in entries {
        line::write(&mut lines, entry);
    }
    lines.into()
}

#[test]
fn a_large_segment_is_frames_of_whole_lines_and_a_lost_one_is_noticed() {
    let payload = |i: u64| format!(r#"{{"role":"user","content":"{}"}}"#, i.to_string().repeat(40_000));
    let entry = |seq: u64| Entry {
        seq: Seq(seq),
        version: Version(seq),
        at: Micros(0),
        kind: EntryKind::Message,
        tokens: 0,
        payload: payload(seq).into(),
    };
    let entries: Vec<_> = (100..140).map(entry).collect();
    let (header, lines) = (header(&entries), lines_of(&entries));
    let encoded = segment::encode(&header, &[lines.slice(..lines.len() / 2), lines.slice(lines.len() / 2..)]);
    let encoded = encoded.unwrap();
    let parts = segment::parts(&encoded.stored, encoded.raw_bytes).unwrap();
    assert_eq!(parts.iter().map(segment::StoredPart::raw_bytes).sum::<usize>() as u64, encoded.raw_bytes);
    assert!(parts.len() == 5 && parts[..4].iter().all(|part| part.raw_bytes() > SEGMENT_FRAME_RAW_BYTES));
    let decoded = parts.iter().map(|part| part.decode_verified().unwrap());
    let decoded: Vec<_> = decoded.flat_map(|part| part.entries).collect();
    assert_eq!(decoded, entries);
    let whole = segment::decode(&encoded.stored, encoded.raw_bytes).unwrap();
    assert_eq!((whole.lines.concat(), whole.entries), (lines.to_vec(), entries));
    let plain = zstd::decode_all(&*encoded.stored).unwrap();
    assert!(plain.ends_with(&lines));
    // Each of the frames begins with these four bytes.
    let begins = |at: &usize| encoded.stored[*at..].starts_with(&[0x28, 0xb5, 0x2f, 0xfd]);
    let starts: Vec<_> = (1..encoded.stored.len()).filter(begins).collect();
    assert_eq!(starts.len(), 4);
    for start in starts {
        let lost = segment::decode(&encoded.stored.slice(..start), encoded.raw_bytes);
        assert!(matches!(lost, Err(CodecError::Damaged(_))), "cut at {start}");
    }
}

proptest! {
    #[test]
    fn a_segment_gives_back_its_header_and_entries(parts in prop::collection::vec(entries(), 0..4)) {
        let parts = in_order(parts);
        let header = header(&parts.concat());
        let lines: Vec<_> = parts.iter().map(|entries| lines_of(entries)).collect();
        let encoded = segment::encode(&header, &lines).unwrap();
        prop_assert_eq!(encoded.sha256, digest::sha256(&encoded.stored));
        let decoded = segment::decode(&encoded.stored, encoded.raw_bytes).unwrap();
        prop_assert_eq!(decoded.raw_bytes(), encoded.raw_bytes);
        prop_assert_eq!(serde_json::to_string(&decoded.header().unwrap()).unwrap(), serde_json::to_string(&header).unwrap());
        prop_assert_eq!(decoded.lines.concat(), lines.concat());
        prop_assert_eq!(decoded.entries, parts.concat());
        // A row that says less does not get more.
        let error = segment::decode(&encoded.stored, encoded.raw_bytes - 1).unwrap_err();
        let is_too_large = matches!(error, CodecError::TooLarge { .. });
        prop_assert!(is_too_large);
    }

    #[test]
    fn an_altered_segment_is_an_error_or_the_same(
        entries in entries(), at in any::<prop::sample::Index>(), bit in 0_u8..8, is_cut in any::<bool>(),
    ) {
        let entries = in_order(vec![entries]).concat();
        let encoded = segment::encode(&header(&entries), &[lines_of(&entries)]).unwrap();
        let mut altered = encoded.stored.to_vec();
        let at = at.index(altered.len());
        if is_cut {
            altered.truncate(at);
        } else {
            altered[at] ^= 1 << bit;
        }
        match segment::decode(&altered.into(), encoded.raw_bytes) {
            Ok(Decoded { entries: found, .. }) => prop_assert_eq!(found, entries),
            Err(CodecError::Damaged(_) | CodecError::TooLarge { .. }) => {}
            Err(other) => prop_assert!(false, "{}", other),
        }
    }
}
