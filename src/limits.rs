//! Every bound of the service, each with its reason.
//!
//! A bound that an operator may want to move is the default of a setting; the
//! rest are part of the contract.

use std::time::Duration;

/// Bytes in a KiB.
const KIB: usize = 1024;
/// Bytes in a MiB.
const MIB: usize = 1024 * KIB;

// --- Names -----------------------------------------------------------------

/// Longest id of a session or request, in characters. Ids stand in SQL keys,
/// logs and URLs.
pub const ID_CHARS_MAX: usize = 128;

/// Most labels of a session: each is an indexed row.
pub const LABELS_MAX: usize = 32;
/// Longest label key in characters, as in DNS and Kubernetes.
pub const LABEL_KEY_CHARS_MAX: usize = 63;
/// Longest label value, in bytes.
pub const LABEL_VALUE_BYTES_MAX: usize = 255;
/// Most labels in a list filter: each is a condition of the statement.
pub const FILTER_LABELS_MAX: usize = 4;

/// Longest name of a model or profile, in bytes.
pub const MODEL_NAME_BYTES_MAX: usize = 128;
/// Longest name of a step kind, in bytes.
pub const STEP_KIND_BYTES_MAX: usize = 64;
/// Longest window id that a usage report may name, in bytes: twice what the
/// service's own take.
pub const WINDOW_ID_BYTES_MAX: usize = 512;
/// Most strip rule sets of a session.
pub const STRIP_RULES_MAX: usize = 16;

/// Largest number of tokens that a request or profile may name: a thousand
/// times the largest model's window, and far below where sums overflow.
pub const TOKENS_MAX: u64 = 1 << 40;

// --- Requests --------------------------------------------------------------

/// Largest gRPC request, in bytes: what a persist may take. A larger turn is
/// to be split or its outputs offloaded.
pub const REQUEST_BYTES_MAX: usize = 32 * MIB;

/// What the smallest persist is counted as while it is admitted, for what it
/// takes beside its bytes; and the size up to which other calls are not counted.
pub const ADMISSION_SMALL_BYTES: usize = 16 * KIB;

/// How long a request may take to begin with its message.
pub const REQUEST_START_TIMEOUT: Duration = Duration::from_secs(10);

/// The least at which a request may arrive after that, in bytes a second: 2 Mbit/s.
/// While it arrives it takes room from others.
pub const REQUEST_BYTES_PER_SECOND_MIN: usize = 256 * KIB;

/// Largest payload of one entry, in bytes: a request less its envelope.
pub const ENTRY_BYTES_MAX: usize = REQUEST_BYTES_MAX - 64 * KIB;

/// Most entries of one turn. The longest real turns have a few hundred.
pub const TURN_ENTRIES_MAX: usize = 10_000;

/// Most entries of a snapshot: ten times the longest recorded sessions.
pub const SNAPSHOT_ENTRIES_MAX: usize = 100_000;

/// Largest preamble, in bytes: a session or a window's header holds it whole
/// and must stay under the 4 MiB that gRPC clients accept by default. The
/// largest recorded ones are near 64 KiB.
pub const PREAMBLE_BYTES_MAX: usize = 2 * MIB;

/// Default and largest page of a list, in rows.
pub const PAGE_SIZE_DEFAULT: u32 = 100;
/// Largest page of a list, in rows.
pub const PAGE_SIZE_MAX: u32 = 1_000;

/// Bytes of sessions after which a page of them ends early: well under the
/// 4 MiB that gRPC clients accept by default.
pub const PAGE_BYTES_MAX: usize = 2 * MIB;

/// Encoded bytes of items after which a message of a stream is sent: well under the
/// 4 MiB that gRPC clients accept by default.
pub const STREAM_CHUNK_BYTES: usize = MIB;

// --- Turns, journal, segments ------------------------------------------------

/// Encoded bytes over which a turn goes to the object store first and only its
/// row into the metadata store.
pub const TURN_OBJECT_FIRST_BYTES: usize = MIB;

/// Largest encoded turn that the journal takes when the object store fails, with the
/// tool outputs that it holds; and the largest of other outputs that is held.
pub const JOURNAL_TURN_BYTES_MAX: usize = 8 * MIB;

/// Most encoded bytes that a session may have in the journal, held outputs included.
pub const JOURNAL_SESSION_BYTES_MAX: u64 = 64 * MIB as u64;

/// Times that an object-first turn is encoded afresh when the head moves under
/// it.
pub const OBJECT_FIRST_ATTEMPTS: usize = 3;

/// Times that a persist without `expected_version` is tried when others write
/// to the session at the same time.
pub const APPEND_ATTEMPTS: usize = 16;

/// Raw journal bytes at which a branch is sealed: segments of 256 KiB compress
/// nearly as well as whole sessions.
pub const SEAL_RAW_BYTES: u64 = 256 * KIB as u64;
/// Raw journal bytes at which a branch is sealed once it is old.
pub const SEAL_OLD_RAW_BYTES: u64 = 64 * KIB as u64;

/// Most raw bytes of one segment that the service writes by sealing. A larger
/// journal is sealed into several.
pub const SEAL_SEGMENT_RAW_BYTES_MAX: usize = 8 * MIB;

/// Stored bytes under which a segment is rolled up with its neighbours.
pub const ROLL_UP_SMALL_BYTES: u64 = MIB as u64;
/// Raw bytes up to which segments are rolled up: restores fetch segments in
/// parallel, and one decoded segment must fit the memory of a restore well.
pub const ROLL_UP_RAW_BYTES_MAX: u64 = 8 * MIB as u64;
/// Fewest segments that are worth a roll-up.
pub const ROLL_UP_SEGMENTS_MIN: usize = 4;

/// Most raw bytes that a segment may decode to: a single turn of the largest
/// request, with its line envelopes, and a journal before it.
pub const SEGMENT_RAW_BYTES_MAX: usize = 256 * MIB;

/// Raw bytes from which on a segment's frame ends with its line: frames are decoded side
/// by side, and as large a one compresses nearly as well as all in one.
pub const SEGMENT_FRAME_RAW_BYTES: usize = MIB;

/// Raw bytes of a frame of a stored tool output: what a reader decodes at least.
/// Frames of 256 KiB compress nearly as well as a stream.
pub const OUTPUT_FRAME_RAW_BYTES: usize = 256 * KIB;

/// Most raw bytes that a stored tool output may have: far above the default of
/// the setting, and a bound on its index, of which a reader needs the whole.
pub const OUTPUT_RAW_BYTES_MAX: u64 = 16 * 1024 * MIB as u64;

/// Most raw bytes of a tool output unless the operator sets another bound.
pub const OUTPUT_RAW_BYTES_DEFAULT: u64 = 1024 * MIB as u64;

/// Longest name of a tool, id of a call and media type of an output, in bytes.
pub const OUTPUT_LABEL_BYTES_MAX: usize = 256;

/// Most bytes of what an output's blob says of itself, as JSON: twice those of its
/// labels and names, and room for the rest.
pub const OUTPUT_ABOUT_BYTES_MAX: usize = 8 * KIB;

/// Most outputs that come in at the same time: each takes up to 28 MiB of memory,
/// most of it parts on their way to the object store and what may yet be held.
pub const OFFLOADS_MAX: usize = 16;

/// How long an offload waits for the next message of its stream.
pub const OFFLOAD_IDLE_TIMEOUT: Duration = Duration::from_secs(30);

/// How long an offload may take: its writer generation lives on for one rotation,
/// of 11 minutes at least, after the next was taken.
pub const OFFLOAD_TIMEOUT: Duration = Duration::from_mins(10);

/// Length of a message with a tool result that is taken to be the limit when a
/// profile has none, in characters.
pub const TOOL_RESULT_CHARACTERS: u64 = 100_000;

/// Largest limit of a tool result, in its unit: previews and pages are made in
/// memory.
pub const TOOL_RESULT_LENGTH_MAX: u64 = 500_000;
/// How much of a preview is from the beginning, if nobody says otherwise, in percent.
pub const PREVIEW_HEAD_PERCENT: u8 = 50;
/// Least that a profile may allow for a preview, in its unit: the marker with the longest
/// ref has up to 400 characters.
pub const PREVIEW_LENGTH_MIN: u64 = 500;

/// Bytes up to which a text may be as short as one token: with more for each token of
/// a limit it is taken to be too long without being counted.
pub const TOKEN_TEXT_BYTES_MAX: u64 = 8;

/// What a worker may put around a text that it offloaded or read, in the unit of the
/// limit, beyond what messages with a result usually have: kept free of the limit when
/// a text is measured without its message, but not more than an eighth of it, so that
/// the message is not too long when it is persisted.
pub const TOOL_RESULT_WRAPPING_MAX: u64 = 512;

/// Least limit of a picture's or document's bytes: what stands in place of one is not
/// taken for too large itself.
pub const MEDIA_LIMIT_BYTES_MIN: u64 = 4 * KIB as u64;

/// Most bytes of entries in the answer to a persist that changed them: with the rest
/// of it that stays under the 4 MiB that gRPC clients accept by default.
pub const CHANGED_ENTRIES_BYTES_MAX: usize = 2 * MIB;

/// Most bytes of what that answer tells of the outputs of the turn, so that it stays
/// under the 4 MiB with those entries.
pub const OFFLOADED_RESULTS_BYTES_MAX: usize = MIB;

/// Most raw bytes of a page of a tool output: with its envelope it stays well under
/// the 4 MiB that gRPC clients accept by default.
pub const OUTPUT_PAGE_BYTES_MAX: usize = MIB;

/// Raw bytes of a tool output that are fetched at once at most, in whole frames.
pub const OUTPUT_FETCH_RAW_BYTES_MAX: usize = 4 * MIB;

/// Longest pattern that outputs are searched for, in bytes.
pub const OUTPUT_PATTERN_BYTES_MAX: usize = 4 * KIB;
/// Most memory that a compiled pattern may take, in bytes.
pub const OUTPUT_PATTERN_COMPILED_BYTES_MAX: usize = 4 * MIB;
/// Default number of matches of a search.
pub const OUTPUT_MATCHES_DEFAULT: u32 = 100;
/// Most matches of a search.
pub const OUTPUT_MATCHES_MAX: u32 = 10_000;
/// Most lines before and after a match that are shown with it.
pub const OUTPUT_CONTEXT_LINES_MAX: u32 = 100;
/// Bytes of a line that a search shows: of a longer one it shows where the match
/// is.
pub const OUTPUT_LINE_SHOWN_BYTES: usize = 2_000;
/// Bytes of a line that are searched at once: a longer one is searched in pieces.
pub const OUTPUT_LINE_SEARCHED_BYTES: usize = MIB;
/// Bytes that those pieces have in common: a match across two pieces is found if it
/// is no longer.
pub const OUTPUT_LINE_OVERLAP_BYTES: usize = 4 * KIB;

/// Default number of matches of a search of a transcript.
pub const SEARCH_MATCHES_DEFAULT: u32 = 50;
/// Most matches of a search of a transcript: a reader of all of them asks again.
pub const SEARCH_MATCHES_MAX: u32 = 1_000;
/// Default number of characters before and after a match that are shown with it:
/// a line or two.
pub const SEARCH_CONTEXT_CHARACTERS_DEFAULT: u32 = 100;
/// Most characters before and after a match that are shown with it.
pub const SEARCH_CONTEXT_CHARACTERS_MAX: u32 = 1_000;
/// Characters of a match that are shown.
pub const SEARCH_MATCH_SHOWN_CHARACTERS: usize = 500;
/// Most tools that a search may name.
pub const SEARCH_TOOL_NAMES_MAX: usize = 32;

/// Most characters of a transcript that a model reads at once, if its tool results may
/// have so many: a fifth of what they may by default.
pub const TRANSCRIPT_PAGE_CHARACTERS: usize = 20_000;

/// Largest zstd window that is accepted, as a power of two: what level 3 to 19
/// write for inputs of our sizes, and a bound on a decoder's memory.
pub const ZSTD_WINDOW_LOG_MAX: u32 = 25;

/// Longest chain of branches: each fork or rewind at the end of another adds
/// one.
pub const LINEAGE_DEPTH_MAX: usize = 10_000;

/// Interrupted calls that a session remembers, for results that come late. An
/// older call's late result is left out of windows.
pub const INTERRUPTED_CALLS_MAX: usize = 32;
/// Most bytes of the ids and names of those calls: each turn's row holds them.
pub const INTERRUPTED_CALLS_BYTES_MAX: usize = 16 * KIB;

/// Most calls that may wait for results after a turn. The largest recorded step
/// makes some dozens, and each turn's row holds them all.
pub const PENDING_CALLS_MAX: usize = 1_000;
/// Most bytes of the ids and names of those calls.
pub const PENDING_CALLS_BYTES_MAX: usize = 64 * KIB;

/// Forks that a deletion receipt names.
pub const RECEIPT_FORKS_MAX: usize = 100;

// --- Windows -----------------------------------------------------------------

/// Repairs of a window that its header lists: with a preamble and the calls that
/// wait, it stays under the 4 MiB that gRPC clients accept by default.
pub const REPAIRS_MAX: usize = 1_000;
/// Entries that a repair names.
pub const REPAIR_SEQS_MAX: usize = 32;
/// Bytes of an id or a detail that a repair tells.
pub const REPAIR_TEXT_BYTES_MAX: usize = 256;

/// Share of a context window that is kept for the output when neither request
/// nor profile say more: a quarter.
pub const RESERVE_DIVISOR: u64 = 4;

/// Share of the usable window at which compaction is advised, in percent.
pub const COMPACTION_ADVISED_PERCENT: u64 = 60;

/// Length over which a tool result is snipped, in characters, unless the operator sets a
/// larger one. Under it, the ends and the marker between them would save little.
pub const SNIP_CHARACTERS: u64 = 1_500;
/// Length of a snipped tool result, marker included, in characters: a few lines of
/// both ends.
pub const SNIPPED_CHARACTERS: u64 = 600;

/// Tokens to which the first message of the user is shown once it lies before the
/// window's cut.
pub const FIRST_MESSAGE_TOKENS: u64 = 2_000;

/// Share of a truncated window that system and developer messages from the midst of
/// what left may take, in percent.
pub const KEPT_SYSTEM_PERCENT: u64 = 10;
/// Growth of a window, in percent of the usable one, after which it is looked at again.
pub const TEND_PERCENT: u64 = 2;
/// Summaries and extracts in a row that may leave a window over the share that asks for
/// them: no model is asked for the next.
pub const UNRELIEVED_MAX: u32 = 2;
/// Growth of such a window, in percent of the usable one, after which a model is asked
/// again: as much as lies between what a summary leaves and the next.
pub const RELIEF_PERCENT: u64 = 20;

/// Bounds of the factor by which counted tokens are calibrated, in thousandths.
pub const CALIBRATION_PERMILLE_MIN: u64 = 700;
/// See [`CALIBRATION_PERMILLE_MIN`].
pub const CALIBRATION_PERMILLE_MAX: u64 = 2_000;
/// By how much more may be reported than counted before that cannot wait for a
/// compaction, in percent.
pub const CALIBRATION_SLACK_PERCENT: u64 = 10;
/// Fewest counted tokens of a call whose report says something of them: of a smaller
/// one, what the provider adds to each call is too large a part.
pub const CALIBRATION_TOKENS_MIN: u64 = 1_000;
/// Times more, or less, than was counted that a report cannot be of that call.
pub const CALIBRATION_ABSURD: u64 = 8;
/// Newest turns among which a compaction looks for a report.
pub const CALIBRATION_TURNS: u32 = 32;

/// Share of the size over which a window is snipped to which it is, in percent: as
/// with truncation.
pub const SNIP_FLOOR_PERCENT: u64 = 80;
/// Longest text that a caller adds to the prompt of a summary, in bytes.
pub const SUMMARY_INSTRUCTIONS_BYTES_MAX: usize = 8 * KIB;
/// Most tokens of the source that a summarizer is given, unless the operator sets
/// another bound; of more, both ends.
pub const SUMMARIZER_SOURCE_TOKENS: u64 = 100_000;
/// Least tokens that a model is asked to summarize: the headings that the prompt asks for
/// take some hundred by themselves.
pub const SUMMARIZER_SOURCE_TOKENS_MIN: u64 = 400;
/// How long a summary that is made in the background may take.
pub const SUMMARIZER_CLAIM: Duration = Duration::from_mins(5);
/// Longest that a restore, or who asks for one, waits for a summary: its call may take two minutes, and has to
/// answer without one if need be.
pub const SUMMARY_WAIT_MAX: Duration = Duration::from_secs(90);
/// Longest prompt that an operator gives summarizers, in bytes: ten times the built-in one.
pub const PROMPT_BYTES_MAX: usize = 32 * KIB;
/// Time of a call for a summary in which no model is waited for any more, if a quarter of
/// it is not less.
pub const COMPACT_RESERVE: Duration = Duration::from_secs(5);
/// How long a session gets no summary after one failed, unless the operator sets it.
pub const SUMMARIZER_COOLDOWN: Duration = Duration::from_mins(5);
/// Failures of the provider in a row after which no summaries are asked for at all for a
/// while, unless the operator sets another number.
pub const SUMMARIZER_FAILURES_MAX: u32 = 5;
/// That while, unless the operator sets it.
pub const SUMMARIZER_BREAK: Duration = Duration::from_mins(1);
/// Most seconds that either may be set to: a day.
pub const SUMMARIZER_PAUSE_SECONDS_MAX: u64 = 24 * 60 * 60;

/// Largest part of a small window that what stands for the entries that left may take:
/// an eighth.
pub const SUMMARY_DIVISOR: u64 = 8;
/// Share of it that the ledger may take unless the operator sets another, in percent.
pub const LEDGER_PERCENT: u64 = 30;
/// The largest that may be set: a summary is told to have the rest.
pub const LEDGER_PERCENT_MAX: u64 = 50;
/// Losses that the record of a compaction lists.
pub const AUDIT_LOSSES_MAX: usize = 200;

/// Longest name of a pin or note, in characters.
pub const NAME_CHARS_MAX: usize = 64;
/// Longest text of a pin, in bytes.
pub const PIN_BYTES_MAX: usize = 8 * KIB;
/// Most pins of a session: each window state holds them all.
pub const PINS_MAX: usize = 200;
/// Share of the usable window that pins may take unless the operator sets another, in
/// percent.
pub const PINS_PERCENT: u64 = 10;
/// The largest that may be set: no compaction makes room where pins are.
pub const PINS_PERCENT_MAX: u64 = 25;

/// Entries within which a log is looked at for the system entries with which it begins,
/// if there were pins before it.
pub const OPENING_ENTRIES_MAX: u64 = 64;

/// Longest text of a note, in bytes.
pub const NOTE_BYTES_MAX: usize = 64 * KIB;
/// Most notes of a session.
pub const NOTES_MAX: usize = 200;
/// Most bytes of a session's notes together: a manifest, which is written with each
/// seal, and a list of them hold them all.
pub const NOTES_BYTES_MAX: usize = MIB;
/// Bytes of names of notes that a window shows: about 500 tokens.
pub const NOTE_NAMES_BYTES_MAX: usize = 2 * KIB;

/// Most window states that are read at once: each may have a summary and pins.
pub const WINDOW_STATES_PAGE: u32 = 100;
/// Most window states of a session's manifest, of its newest branches: it is written
/// with each seal.
pub const MANIFEST_WINDOW_STATES_MAX: usize = 16;

/// Times that a cut is moved when the window turns out larger than its parts.
pub const CUT_ATTEMPTS: usize = 8;
/// Longest tool call id of Anthropic, Bedrock and OpenAI Responses, in bytes.
/// Source: `string_above_max_length` answers of the APIs.
pub const CALL_ID_BYTES_MAX: usize = 64;

/// Longest tool call id of OpenAI Chat, in characters. Source as before.
pub const SHORT_CALL_ID_CHARS_MAX: usize = 40;

// --- Model providers ---------------------------------------------------------

/// Largest answer of a model provider that is read, in bytes: the largest output
/// of any model, at four bytes a token.
pub const PROVIDER_RESPONSE_BYTES_MAX: usize = 4 * MIB;

/// Longest message of a provider's failure that is kept, in bytes.
pub const PROVIDER_MESSAGE_BYTES_MAX: usize = 1_000;

/// Times that a provider is called for one completion, if its failures may pass.
pub const PROVIDER_ATTEMPTS_MAX: u32 = 4;

/// Pause before the second of them; it doubles from one to the next. Half of it
/// is chance.
pub const PROVIDER_BACKOFF: Duration = Duration::from_millis(500);

const _: () = assert!(STREAM_CHUNK_BYTES * 2 < 4 * MIB);
// Nearly all that a state may hold are its pins. JSON may escape each byte of them, and
// of notes.
const _: () = assert!(
    (MANIFEST_WINDOW_STATES_MAX * PINS_MAX * PIN_BYTES_MAX + NOTES_BYTES_MAX) * 6 < SEGMENT_RAW_BYTES_MAX
);
const _: () = assert!(NOTES_BYTES_MAX + NOTES_MAX * 512 < 4 * MIB);
const _: () = assert!(
    PREAMBLE_BYTES_MAX
        + REPAIRS_MAX * (2 * REPAIR_TEXT_BYTES_MAX + 10 * REPAIR_SEQS_MAX + 64)
        + PENDING_CALLS_BYTES_MAX
        + PENDING_CALLS_MAX * 64
        < 4 * MIB
);
const _: () = assert!(ENTRY_BYTES_MAX < REQUEST_BYTES_MAX);
const _: () = assert!(OUTPUT_RAW_BYTES_DEFAULT <= OUTPUT_RAW_BYTES_MAX);
const _: () = assert!(TOOL_RESULT_LENGTH_MAX <= OUTPUT_PAGE_BYTES_MAX as u64);
const _: () = assert!(TURN_OBJECT_FIRST_BYTES <= JOURNAL_TURN_BYTES_MAX);
const _: () = assert!(JOURNAL_TURN_BYTES_MAX as u64 <= JOURNAL_SESSION_BYTES_MAX);
const _: () = assert!(SEAL_SEGMENT_RAW_BYTES_MAX + REQUEST_BYTES_MAX < SEGMENT_RAW_BYTES_MAX);
const _: () = assert!(ROLL_UP_RAW_BYTES_MAX <= SEGMENT_RAW_BYTES_MAX as u64);
const _: () = assert!(PAGE_SIZE_DEFAULT <= PAGE_SIZE_MAX);

// --- Summaries ---------------------------------------------------------------

/// Longest literal that is looked after, in bytes: URLs with signatures are
/// longer than anybody remembers.
pub const LITERAL_BYTES_MAX: usize = 512;
/// Most literals of a kind that are looked after in one compaction.
pub const LITERALS_MAX: usize = 1_000;
/// Most literals of a kind at which tool results may still add to them: what
/// people and the model name always has room.
pub const TOOL_LITERALS_MAX: usize = LITERALS_MAX / 2;
/// Longest sentence that can be a constraint or decision, in bytes: longer ones
/// are no sentences but text without full stops.
pub const SENTENCE_BYTES_MAX: usize = 1_000;
/// Most constraints, and most decisions, that one compaction finds: the newest.
pub const STATEMENTS_MAX: usize = 500;

/// Most files of a ledger. Those that were only read go first.
pub const LEDGER_FILES_MAX: usize = 500;
/// Most commands of a ledger.
pub const LEDGER_COMMANDS_MAX: usize = 100;
/// Most new names of a ledger.
pub const LEDGER_MINTED_MAX: usize = 200;
/// Most calls that wait for their results; models make a few dozen at once.
pub const LEDGER_PENDING_MAX: usize = 256;
/// Most things that one call does.
pub const LEDGER_EFFECTS_MAX: usize = 64;
/// Longest name of a file in a ledger, in bytes. Longer ones are no names.
pub const LEDGER_PATH_BYTES_MAX: usize = 512;
/// Longest command in a ledger, in bytes; its beginning stands for the rest.
pub const LEDGER_COMMAND_BYTES_MAX: usize = 300;

/// Longest line of an extract, in bytes: what a person reads at a glance.
pub const EXTRACT_LINE_BYTES_MAX: usize = 300;
/// Most requests of the user that an extract keeps, beside the first.
pub const EXTRACT_REQUESTS_MAX: usize = 50;
/// Most constraints, and most decisions, of an extract.
pub const EXTRACT_STATEMENTS_MAX: usize = 100;
/// Most errors of an extract.
pub const EXTRACT_ERRORS_MAX: usize = 20;
/// Most literals of an extract.
pub const EXTRACT_LITERALS_MAX: usize = 200;
