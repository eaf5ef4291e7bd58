//! A session that goes on until its window was compacted ten times.

use crate::accepted::assert_accepted;
use crate::conversation::{Demand, PLANTED};
use crate::messages::user;
use crate::service::{Restored, SESSION, Service, answer, append_entries, fresh_id, message, of_format};
use pb::{CompactionKind, ItemOrigin};
use serde_json::Value;
use std::collections::BTreeMap;
use std::time::Duration;
use turnkeep::clock::{self, Stopwatch};
use turnkeep::engine::CompactionOptions;
use turnkeep::model::{self as core, Seq, Tokenizer};
use turnkeep::rpc::pb;
use turnkeep::summary::{Said, literals};
use turnkeep::tokens::TokenCounter;

const PASSES: usize = 10;

/// Pins of the caller's.
const PINS: [(&str, &str); 2] = [
    ("goal", "Ship release 4.2.0-rc.1 to eu-west-1, \"blue\" first — nothing else.\n\tSee §7."),
    ("rule", "保持 `schema/v3` 不变; C:\\data\\*.bak bleibt, wo es ist."),
];

/// What stands in the slot beside pins, summary and ledger, in tokens, at most.
const FRAME_TOKENS: u64 = 400;

/// What a window may show of the first and last messages of the user, and the notice, in tokens.
const FIRST_TOKENS: u64 = 3_000;

/// Pause between looks whether a summary was taken.
const PAUSE: Duration = Duration::from_millis(500);

/// What is played.
pub(crate) struct Play {
    pub(crate) format: pb::WireFormat,
    pub(crate) path: pb::CompressionPath,
    /// Context window in tokens.
    pub(crate) context: u64,
    pub(crate) turns: Vec<Vec<pb::NewEntry>>,
    /// How long a summary is waited for before each compaction, once it is due.
    pub(crate) patience: Duration,
}

impl Play {
    fn session(&self) -> pb::Session {
        let profile = pb::ModelProfile { context_window_tokens: self.context, ..Default::default() };
        pb::Session { path: self.path.into(), profile: Some(profile), ..of_format(self.format) }
    }

    /// What the documentation says that a window has at most after a compaction.
    fn tokens_after_max(&self) -> u64 {
        match self.path {
            pb::CompressionPath::Interactive => self.usable() / 2,
            _ => self.context / 2 * 8 / 10,
        }
    }

    /// Tokens without the default reserve.
    fn usable(&self) -> u64 {
        self.context - self.context / 4
    }

    /// What the documentation says that summary and ledger may take.
    fn slot_tokens_max(&self, settings: &CompactionOptions) -> u64 {
        let share = self.usable() * settings.slot_percent / 100;
        share.clamp(settings.slot_tokens_min, settings.slot_tokens_max).min(self.usable() / 8)
    }
}

/// A compaction, and the window after it.
pub(crate) struct Pass {
    pub(crate) compaction: pb::Compaction,
    /// Tokens of pins, summary and ledger together.
    slot_tokens: u64,
    /// Statements that the window was looked through for.
    demands: usize,
}

/// Persists turns, and restores after each, until the window was compacted ten times.
/// After each of these the window is looked through.
pub(crate) async fn ten_passes(service: &Service, play: Play) -> Vec<Pass> {
    service.create("s", play.session()).await;
    for (name, text) in PINS {
        let pin = pb::Pin { name: name.to_owned(), text: text.to_owned(), seq: 0 };
        let request = pb::PutPinRequest { parent: SESSION.to_owned(), pin: Some(pin) };
        answer(service.client.memory.clone().put_pin(request).await).unwrap();
    }
    let (demands, passes, numbers) = (vec![], vec![], vec![]);
    let (entries, log_tokens, waited) = (0, 0, Duration::ZERO);
    let mut player = Player { service, play, demands, entries, log_tokens, waited, passes, numbers };
    for turn in std::mem::take(&mut player.play.turns) {
        if player.passes.len() >= PASSES {
            break;
        }
        let window = player.turn(turn).await;
        let planted = player.demands.iter().filter(|demand| demand.planted.is_some()).count();
        // Two more after each pass, once no result is waited for.
        if planted < 2 * (player.passes.len() + 1) && window.header.next() != pb::NextStep::ToolResults {
            player.plant(planted).await;
        }
    }
    assert!(player.passes.len() >= PASSES, "only {} compactions", player.passes.len());
    // What the last window shows where it was said is the lesser part; all else left once,
    // and was found again.
    let planted: Vec<_> = player.demands.iter().filter(|demand| demand.planted.is_some()).collect();
    let there: Vec<_> = planted.iter().filter(|demand| demand.left_at.is_none()).collect();
    assert!(
        planted.len() > 10 && there.len() * 2 < planted.len(),
        "{there:#?} of {} never left",
        planted.len()
    );
    let log = service.read(SESSION).await;
    assert_eq!(log.entries.len(), player.entries, "the log is whole");
    player.passes
}

struct Player<'a> {
    service: &'a Service,
    play: Play,
    /// What the window must hold.
    demands: Vec<Demand>,
    entries: usize,
    log_tokens: u64,
    /// How long a summary was waited for since the newest compaction.
    waited: Duration,
    passes: Vec<Pass>,
    /// Compactions that are known.
    numbers: Vec<String>,
}

impl Player<'_> {
    fn format(&self) -> core::WireFormat {
        core::WireFormat::ALL[self.play.format as usize - 1]
    }

    fn counter(&self) -> TokenCounter {
        TokenCounter::new(self.format(), Tokenizer::of_format(self.format()))
    }

    async fn plant(&mut self, number: usize) {
        let text = PLANTED[number % PLANTED.len()];
        let planted = Some(self.entries as u64 + 1);
        self.demands.push(Demand { text: text.to_owned(), planted, left_at: None });
        let said = format!("One more thing.\n\n{text}\n\nNow go on, please.");
        self.turn(vec![message(user(self.play.format, &said))]).await;
    }

    async fn turn(&mut self, turn: Vec<pb::NewEntry>) -> Restored {
        for entry in turn.iter().filter(|entry| entry.kind() != pb::EntryKind::Meta) {
            let said = Said::of(self.format(), Seq(0), &entry.payload);
            for found in literals::find([&said]).constraints {
                let known = |demand: &Demand| demand.text.contains(&found.text);
                if !self.demands.iter().any(known) {
                    self.demands.push(Demand { text: found.text, planted: None, left_at: None });
                }
            }
        }
        self.entries += turn.len();
        let reply = self.service.persist(append_entries(SESSION, &fresh_id(), turn)).await.unwrap();
        let newest = reply.log_tokens - std::mem::replace(&mut self.log_tokens, reply.log_tokens);
        let waiting = Stopwatch::start();
        let mut window = self.service.window(SESSION).await;
        while self.is_due(&window) && self.waited + waiting.elapsed() < self.play.patience {
            clock::sleep(PAUSE).await;
            window = self.service.window(SESSION).await;
        }
        self.waited += waiting.elapsed();
        assert_accepted(self.play.format, &window);
        let items: Vec<Value> =
            window.items.iter().map(|item| serde_json::from_slice(&item.payload).unwrap()).collect();
        assert_eq!(window.header.fits, Some(true));
        let request =
            pb::ListCompactionsRequest { parent: SESSION.to_owned(), page_size: 5, ..Default::default() };
        let listed = answer(self.service.client.transcripts.clone().list_compactions(request).await).unwrap();
        for compaction in listed.compactions.into_iter().rev() {
            if compaction.kind() != CompactionKind::Snip && !self.numbers.contains(&compaction.name) {
                self.numbers.push(compaction.name.clone());
                self.look_through(compaction, &window, &items, newest);
            }
        }
        window
    }

    /// Whether a summary would be taken if it were there.
    fn is_due(&self, window: &Restored) -> bool {
        self.play.path == pb::CompressionPath::Interactive
            && window.header.tokens_after > self.play.usable() * 7 / 10
    }

    /// Looks through the window after a compaction, whose newest turn has so many tokens.
    fn look_through(&mut self, compaction: pb::Compaction, window: &Restored, items: &[Value], newest: u64) {
        let mut text = String::new();
        for item in items {
            strings(item, &mut text);
        }
        for (name, pin) in PINS {
            assert!(text.contains(pin), "{name} is not in the window after {compaction:#?}");
            assert!(compaction.pins.iter().any(|kept| (&kept.name[..], &kept.text[..]) == (name, pin)));
        }
        let lost: Vec<_> = self.demands.iter().filter(|demand| !text.contains(&demand.text)).collect();
        assert!(lost.is_empty(), "{lost:#?} are not in the window after {}", compaction.name);
        let leaves = |seq: u64| seq < compaction.first_kept_seq && !compaction.kept_seqs.contains(&seq);
        let pass = self.passes.len() + 1;
        for demand in self.demands.iter_mut().filter(|demand| demand.planted.is_some_and(leaves)) {
            demand.left_at.get_or_insert(pass);
        }
        let left = self.demands.iter().filter(|demand| demand.left_at == Some(pass)).count();
        let audited = compaction.audit.iter().find(|tally| tally.subject == "constraint");
        let [kept, lost] = audited.map_or([0, 0], |tally| [tally.kept, tally.lost]);
        assert_eq!(lost, 0, "{:#?}", compaction.losses);
        assert!(kept >= left as u64, "{left} demands left, and {kept} were looked for");

        let of_slot = |item: &&pb::WindowItem| matches!(item.origin(), ItemOrigin::Summary | ItemOrigin::Pin);
        let slots: Vec<_> = window.items.iter().filter(of_slot).map(|item| item.tokens).collect();
        let [slot_tokens] = slots[..] else { panic!("{} slots", slots.len()) };
        let count = |text: &str| self.counter().count_text(text);
        let bounded = count(&compaction.summary) + count(&compaction.ledger);
        let tokens_max = self.play.slot_tokens_max(&self.service.settings.compaction);
        assert!(bounded <= tokens_max, "{bounded} tokens: {compaction:#?}");
        let pins = compaction.pins.iter().map(|pin| count(&pin.text) + 3).sum::<u64>();
        assert!(slot_tokens <= bounded + pins + FRAME_TOKENS, "{slot_tokens}: {compaction:#?}");
        assert!(compaction.tokens_after < compaction.tokens_before, "{compaction:#?}");
        // The newest step stays, however large it is.
        let tokens_max = self.play.tokens_after_max().max(slot_tokens + newest + FIRST_TOKENS);
        assert!(compaction.tokens_after <= tokens_max, "over {tokens_max}: {compaction:#?}");
        self.waited = Duration::ZERO;
        self.passes.push(Pass { compaction, slot_tokens, demands: self.demands.len() + PINS.len() });
    }
}

/// All strings in a value, decoded.
fn strings(value: &Value, text: &mut String) {
    match value {
        Value::String(string) => text.extend([string, "\n"]),
        Value::Array(list) => list.iter().for_each(|element| strings(element, text)),
        Value::Object(object) => object.values().for_each(|element| strings(element, text)),
        _ => {}
    }
}

/// Prints what became of what was said, by its kind.
pub(crate) fn print(title: &str, passes: &[Pass]) {
    const SUBJECTS: [&str; 10] =
        ["constraint", "decision", "path", "url", "hash", "id", "symbol", "error-code", "number", "quoted"];
    println!("{title}: kept+lost of what was said in what left");
    println!(
        "{:>4} {:9} {:>7} {:>7} {:>6} {:>7} {}",
        "pass",
        "kind",
        "before",
        "after",
        "slot",
        "demands",
        SUBJECTS.map(|subject| format!("{subject:>11}")).concat()
    );
    let mut sums: BTreeMap<&str, [u64; 2]> = BTreeMap::new();
    let line = |tallies: &BTreeMap<&str, [u64; 2]>| {
        SUBJECTS.map(|subject| {
            let [kept, lost] = tallies.get(subject).copied().unwrap_or_default();
            format!("{:>11}", format!("{kept}+{lost}"))
        })
    };
    for (number, pass) in (1..).zip(passes) {
        let Pass { compaction, slot_tokens, demands } = pass;
        let mut tallies = BTreeMap::new();
        for tally in &compaction.audit {
            tallies.insert(tally.subject.as_str(), [tally.kept, tally.lost]);
            let sum = sums.entry(tally.subject.as_str()).or_default();
            *sum = [sum[0] + tally.kept, sum[1] + tally.lost];
        }
        println!(
            "{number:>4} {:9} {:>7} {:>7} {slot_tokens:>6} {demands:>7} {}",
            format!("{:?}", compaction.kind()),
            compaction.tokens_before,
            compaction.tokens_after,
            line(&tallies).concat()
        );
    }
    println!("{:46} {}", " all", line(&sums).concat());
}
