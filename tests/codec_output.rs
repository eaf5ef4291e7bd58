//! The blob of a tool output: any content comes back, whole and by any range, or
//! an error does.

#![cfg(feature = "server")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use proptest::prelude::*;
use sha2::{Digest as _, Sha256};
use std::io::{self, Read as _, Write};
use std::ops::Range;
use turnkeep::clock::Micros;
use turnkeep::codec::CodecError;
use turnkeep::codec::output::{About, END_BYTES, Frame, Index, Summary, Writer, tail_bytes};
use turnkeep::limits::{OUTPUT_FRAME_RAW_BYTES, OUTPUT_LABEL_BYTES_MAX};
use turnkeep::model::{BranchId, ChangedEntry, Digest, OutputId, SessionId, TenantId, Version};

/// Bytes of a frame's content.
const FRAME: usize = OUTPUT_FRAME_RAW_BYTES;

fn write<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> (Vec<u8>, Summary) {
    let mut writer = Writer::new(Vec::new()).unwrap();
    for part in parts {
        writer.push(part).unwrap();
    }
    writer.finish(about()).unwrap()
}

/// An output, with a value of its own in every field.
fn about() -> About {
    let digest = |byte| Digest([byte; 32]);
    About {
        tenant: TenantId::parse("acme").unwrap(),
        session: SessionId::parse("s:1").unwrap(),
        branch: BranchId::parse("b1").unwrap(),
        version: Version(7),
        output: OutputId::parse("0f").unwrap(),
        tool_call_id: "call \"1\"".to_owned(),
        tool_name: "grep".to_owned(),
        content_type: "text/plain".to_owned(),
        bytes: 1,
        characters: 9,
        lines: 1,
        sha256: digest(1),
        created_at: Micros(1_700_000_000_000_000),
        entry: Some(ChangedEntry { stored: digest(2), received: digest(3) }),
    }
}

/// What the blob of an output of that content says that it is.
fn about_of(content: &[u8]) -> About {
    let lines = lines(content).len() as u64;
    let sha256 = Digest(Sha256::digest(content).into());
    About { bytes: content.len() as u64, lines, sha256, ..about() }
}

fn stored(blob: &[u8], range: &Range<u64>) -> Vec<u8> {
    let range = usize::try_from(range.start).unwrap()..usize::try_from(range.end).unwrap();
    blob.get(range).unwrap_or_default().to_vec()
}

fn index(blob: &[u8], tail_at: u64) -> Result<Index, CodecError> {
    Index::decode(blob.get(usize::try_from(tail_at).unwrap()..).unwrap_or_default(), tail_at)
}

fn read_bytes(blob: &[u8], index: &Index, bytes: Range<u64>) -> Result<Vec<u8>, CodecError> {
    let mut read = Vec::new();
    for frame in index.frames_of_bytes(bytes.clone()) {
        let raw = frame.decode(&stored(blob, &frame.stored))?;
        let within =
            |at: u64| usize::try_from(at.clamp(frame.raw.start, frame.raw.end) - frame.raw.start).unwrap();
        read.extend_from_slice(&raw[within(bytes.start)..within(bytes.end)]);
    }
    Ok(read)
}

fn read_lines(blob: &[u8], index: &Index, lines: Range<u64>) -> Result<Vec<u8>, CodecError> {
    let mut read = Vec::new();
    for frame in index.frames_of_lines(lines.clone()) {
        let raw = frame.decode(&stored(blob, &frame.stored))?;
        read.extend_from_slice(
            &raw[frame.start_of_line(&raw, lines.start)..frame.start_of_line(&raw, lines.end)],
        );
    }
    Ok(read)
}

/// The lines of a content, their line breaks included.
fn lines(content: &[u8]) -> Vec<&[u8]> {
    content.split_inclusive(|byte| *byte == b'\n').collect()
}

/// Contents of up to a few frames.
fn content() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        4 => "[ -~é世]{0,80}\n".prop_map(String::into_bytes),
        1 => prop::collection::vec(any::<u8>(), 0..200),
        1 => Just(b"\n".to_vec()),
        1 => Just(b"\r\n\0\x1b[0m".to_vec()),
    ];
    let pieces = prop::collection::vec(piece, 0..40);
    // Lengths about those where a frame ends as well as others.
    let length = prop_oneof![
        0_usize..4 * FRAME,
        (0_usize..4, -2_isize..3).prop_map(|(frames, by)| (frames * FRAME).saturating_add_signed(by)),
    ];
    let fill = any::<u8>();
    (pieces, fill, length).prop_map(|(pieces, fill, length)| {
        let mut content = pieces.concat();
        content.push(fill);
        content.iter().copied().cycle().take(length).collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_content_in_parts_of_any_size_comes_back_whole_and_by_every_range(
        content in content(),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..30),
        ranges in prop::collection::vec(any::<(prop::sample::Index, prop::sample::Index)>(), 10),
    ) {
        let mut cuts: Vec<_> = cuts.iter().map(|cut| cut.index(content.len() + 1)).collect();
        cuts.extend([0, content.len()]);
        cuts.sort_unstable();
        let (blob, summary) = write(cuts.windows(2).map(|part| &content[part[0]..part[1]]));
        let sha256 = |bytes: &[u8]| Digest(Sha256::digest(bytes).into());
        let lines = lines(&content);
        prop_assert_eq!(summary, Summary {
            raw_bytes: content.len() as u64,
            raw_sha256: sha256(&content),
            line_breaks: content.split(|byte| *byte == b'\n').skip(1).count() as u64,
            lines: lines.len() as u64,
            stored_bytes: blob.len() as u64,
            stored_sha256: sha256(&blob),
            tail_at: summary.tail_at,
        });
        // The parts do not matter.
        prop_assert_eq!(&write([&content[..]]).0, &blob);
        prop_assert!(zstd::stream::decode_all(&blob[..]).unwrap() == content);

        let index = index(&blob, summary.tail_at).unwrap();
        prop_assert_eq!(index.frames().len(), content.len().div_ceil(FRAME));
        prop_assert_eq!(index.about().unwrap(), about_of(&content));
        for end in [END_BYTES, blob.len()] {
            prop_assert_eq!(tail_bytes(&blob[blob.len() - end..]), Ok(blob.len() as u64 - summary.tail_at));
        }
        for (a, b) in ranges {
            let (a, b) = (a.index(content.len() + 1), b.index(content.len() + 1));
            let (start, end) = (a.min(b), a.max(b));
            let read = read_bytes(&blob, &index, start as u64..end as u64).unwrap();
            prop_assert!(read == content[start..end]);

            let (a, b) = (a % (lines.len() + 1), b % (lines.len() + 1));
            let (start, end) = (a.min(b), a.max(b));
            let read = read_lines(&blob, &index, start as u64 + 1..end as u64 + 1).unwrap();
            prop_assert!(read == lines[start..end].concat());
        }
        prop_assert!(read_bytes(&blob, &index, 0..u64::MAX).unwrap() == content);
        prop_assert!(read_lines(&blob, &index, 0..u64::MAX).unwrap() == content);
    }

    #[test]
    fn a_range_has_no_frame_that_it_does_not_need(content in content(), at in any::<prop::sample::Index>()) {
        prop_assume!(!content.is_empty());
        let (blob, summary) = write([&content[..]]);
        let index = index(&blob, summary.tail_at).unwrap();
        let byte = at.index(content.len()) as u64;
        let holds = |frame: &&Frame| frame.raw.contains(&byte);
        let expected: Vec<_> = index.frames().iter().filter(holds).cloned().collect();
        prop_assert_eq!(index.frames_of_bytes(byte..byte + 1), &expected[..]);

        let lines = lines(&content);
        let line = at.index(lines.len());
        let start: u64 = lines[..line].iter().map(|line| line.len() as u64).sum();
        let end = start + lines[line].len() as u64;
        let found = index.frames_of_lines(line as u64 + 1..line as u64 + 2);
        let needed = index.frames_of_bytes(start..end);
        prop_assert!(found.ends_with(needed) && found.len() <= needed.len() + 1);
    }

    #[test]
    fn bytes_that_are_no_tail_are_an_error(
        bytes in prop::collection::vec(any::<u8>(), 0..400),
        tail_at in any::<u64>(),
    ) {
        prop_assert!(Index::decode(&bytes, tail_at).is_err());
        prop_assert!(tail_bytes(&bytes).is_err());
    }
}

/// A content of three frames that compresses well, so that its blob is short.
fn example() -> Vec<u8> {
    (1..)
        .flat_map(|i: u32| format!("{}\n", "=".repeat(1 + i as usize * 97 % 4_001)).into_bytes())
        .take(2 * FRAME + 1_000)
        .collect()
}

#[test]
fn every_flipped_bit_and_every_cut_is_an_error_or_gives_the_same_bytes() {
    let content = example();
    let (blob, summary) = write([&content[..]]);
    let index_of = |blob: &[u8]| index(blob, summary.tail_at);
    let whole = index_of(&blob).unwrap();
    let flip = |i: usize| {
        let mut flipped = blob.clone();
        flipped[i / 8] ^= 1 << (i % 8);
        flipped
    };
    for i in 0..blob.len() * 8 {
        let Some(frame) = whole.frames().iter().find(|frame| frame.stored.contains(&(i as u64 / 8))) else {
            assert!(index_of(&flip(i)).is_err(), "bit {i}");
            continue;
        };
        // One bit of a zstd frame's header is unused.
        if let Ok(raw) = frame.decode(&stored(&flip(i), &frame.stored)) {
            assert!(raw == stored(&content, &frame.raw), "bit {i}");
        }
    }
    for length in 0..blob.len() {
        assert!(index_of(&blob[..length]).is_err(), "cut at {length}");
    }
    let longer = [&blob[..], b"x"].concat();
    assert!(index_of(&longer).is_err());
    assert!(Index::decode(&blob[usize::try_from(summary.tail_at).unwrap()..], summary.tail_at + 1).is_err());
}

#[test]
fn frames_of_another_blob_are_refused() {
    let (blob, summary) = write([&example()[..]]);
    let (other, _) = write([&vec![b'\n'; FRAME][..]]);
    let index = index(&blob, summary.tail_at).unwrap();
    let frame = &index.frames()[0];
    let length = frame.stored.end - frame.stored.start;
    assert!(frame.decode(&stored(&other, &(0..length))).is_err());
    assert!(frame.decode(&stored(&blob, &(0..length - 1))).is_err());
}

#[test]
fn a_tail_of_a_newer_format_is_named_as_such() {
    let (blob, summary) = write([b"text".as_slice()]);
    let mut tail = blob[usize::try_from(summary.tail_at).unwrap()..].to_vec();
    tail[24] = 2;
    assert_eq!(Index::decode(&tail, summary.tail_at), Err(CodecError::NewerFormat { found: 2, newest: 1 }));
}

#[test]
fn an_empty_output_is_a_blob_without_frames() {
    let (blob, summary) = write([]);
    assert_eq!((summary.raw_bytes, summary.lines, summary.tail_at), (0, 0, 0));
    assert_eq!(index(&blob, 0).unwrap().frames(), []);
    assert_eq!(zstd::stream::decode_all(&blob[..]).unwrap(), b"");
}

#[test]
fn what_an_output_is_may_be_as_long_as_its_names() {
    let label = "\"".repeat(OUTPUT_LABEL_BYTES_MAX);
    let name = "n".repeat(turnkeep::limits::ID_CHARS_MAX);
    let longest = About {
        tenant: TenantId::parse(&name).unwrap(),
        session: SessionId::parse(&name).unwrap(),
        tool_call_id: label.clone(),
        tool_name: label.clone(),
        content_type: label,
        version: Version(u64::MAX),
        ..about()
    };
    let writer = Writer::new(Vec::new()).unwrap();
    let (blob, summary) = writer.finish(longest.clone()).unwrap();
    let found = index(&blob, summary.tail_at).unwrap().about().unwrap();
    assert_eq!(found, About { bytes: 0, lines: 0, sha256: found.sha256, ..longest });
}

#[test]
fn an_error_of_what_is_written_to_is_final() {
    /// Takes so many bytes.
    struct Full(usize);
    impl Write for Full {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let taken = bytes.len().min(self.0);
            self.0 -= taken;
            Ok(taken)
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let mut writer = Writer::new(Full(10)).unwrap();
    assert!(writer.push(&vec![b'x'; 2 * FRAME]).is_err());
    writer.get_mut().0 = usize::MAX;
    assert!(writer.push(b"more").is_err());
    assert!(writer.finish(about()).is_err());
}

#[test]
fn other_readers_of_the_seekable_format_read_any_part() {
    let content = example();
    let (blob, _) = write([&content[..]]);
    let read = |offset: usize, limit: usize| {
        let mut decoder = zeekstd::DecodeOptions::new(io::Cursor::new(&blob)).into_decoder().unwrap();
        decoder.set_offset(offset as u64).unwrap();
        decoder.set_offset_limit(limit as u64).unwrap();
        let mut read = Vec::new();
        decoder.read_to_end(&mut read).unwrap();
        read
    };
    assert!(read(0, content.len()) == content);
    for range in [0..1, FRAME - 3..FRAME + 3, FRAME..2 * FRAME, 2 * FRAME + 999..content.len()] {
        assert!(read(range.start, range.end) == content[range]);
    }
}

#[test]
fn blobs_of_the_first_format_stay_readable() {
    let blob = include_bytes!("data/codec/output-v1.zst");
    let content = example();
    assert_eq!(zstd::stream::decode_all(&blob[..]).unwrap(), content);
    let index = index(blob, TAIL_AT).unwrap();
    assert_eq!(read_bytes(blob, &index, 0..u64::MAX).unwrap(), content);
    assert_eq!(index.about().unwrap(), about_of(&content));
    let lines = lines(&content);
    assert_eq!(read_lines(blob, &index, 100..103).unwrap(), lines[99..102].concat());
}

/// Where the tail of that blob begins.
const TAIL_AT: u64 = 1288;

mod heavy {
    use super::*;

    #[test]
    fn two_hundred_lines_in_the_middle_of_a_gib_take_less_than_4_mib() {
        let part: Vec<u8> = (0..)
            .flat_map(|i: u32| format!("{i:>7} of the output's lines, as a tool prints them\n").into_bytes())
            .take(1 << 20)
            .collect();
        let mut writer = Writer::new(Vec::new()).unwrap();
        for _ in 0..1024 {
            writer.push(&part).unwrap();
        }
        let (blob, summary) = writer.finish(about()).unwrap();
        assert_eq!(summary.raw_bytes, 1 << 30);
        let index = index(&blob, summary.tail_at).unwrap();
        let first = summary.lines / 2;
        let frames = index.frames_of_lines(first..first + 200);
        let stored: u64 = frames.iter().map(|frame| frame.stored.end - frame.stored.start).sum();
        let decoded: u64 = frames.iter().map(|frame| frame.raw.end - frame.raw.start).sum();
        let touched = summary.stored_bytes - summary.tail_at + stored + decoded;
        assert!(touched <= 4 << 20, "{touched} bytes");
        let read = read_lines(&blob, &index, first..first + 200).unwrap();
        assert_eq!(lines(&read).len(), 200);
    }
}
