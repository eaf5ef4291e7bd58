//! Whether a sentence states a constraint or a decision.
//!
//! The patterns look at the sentence in lower case, with what stands in quotes
//! or backticks taken out: those are not the speaker's own words.

use super::Speaker;
use regex::Regex;
use std::sync::LazyLock;

/// What begins a clause, and so an order: the sentence, a punctuation mark, or a
/// word that joins.
const CLAUSE: &str = r"(?:^|[,;:.—–(!] ?| - |\b(?:and|but|so|please|also|just|then|or|important|remember|note|again|however) )";

/// Patterns that make a sentence a constraint wherever they match.
#[rustfmt::skip]
const CONSTRAINTS: &[&str] = &[
    // English
    r"\b(?:must|shall) ?(?:not|n't|never)\b(?: have been)?",
    r"\b(?:you|we|it) should(?:n't| not| never) (?:ever |be )?(?:touch|use|change|modify|edit|add|commit|push|delete|remove|call|rely|depend|create|write|run|store|log|expose|break|import|install|merge|mention|include|assume|need to)",
    r"\b(?:must|should|you|please|we must|we should) (?:never|always) \w",
    r"\b(?:i|we) (?:really )?(?:do not|don't|dont) want \w",
    r"\byou (?:can|may) only \w",
    r"\b(?:under no circumstances|off[- ]limits|hands off|(?:is|are) (?:strictly )?(?:forbidden|prohibited)|(?:is|are|you're|you are) not allowed)\b",
    r"\b(?:leave|keep) .*(?:\balone\b|\buntouched\b|\bunchanged\b|\bintact\b|\bas[- ]is\b|\bas it is\b|\bas they are\b)",
    r"\b(?:should|must|please|may|can you|could you|can we|let's) only \w",
    r"\b(?:refrain from|make sure (?:you |to )?(?:never|not to|you don't|you do not|we don't))\b",
    // German
    r"\b(?:darf|dürfen|darfst|dürft|soll|sollen|sollst|sollte|sollten|muss|müssen)\b.*\b(?:nicht|kein|keine|keinen|keiner|keinem|nie|niemals)\b",
    r"\b(?:niemals|auf keinen fall|keinesfalls|unter keinen umständen|finger weg|verboten|untersagt)\b",
    r"(?:^|[,;:.] ?|\b(?:bitte|und|aber|dann) )(?:ändere?|fass|fasse|lösche?|benutze?|verwende|nutze?|rühre?|committe|pushe|mach|mache|installiere|entferne|füge|nimm|schreibe?|überschreibe|verändere?)\b.*\b(?:nicht|kein|keine|keinen|nie|niemals|nur|ausschließlich|immer)\b",
    r"^(?:bitte )?(?:nur|ausschließlich|immer|nie)\b.*\w+en\b[.!]*$",
    r"\b(?:bitte|und|aber) (?:nur|immer|nie|kein|keine|keinen)\b.*\w+en\b[.!]*$",
    r"\b(?:muss|müssen|musst|soll|sollen)\b.*\b(?:immer|bleiben|unverändert)\b",
    r"\b(?:keine?|ohne) (?:neuen?|weiteren?) (?:abhängigkeit|dependenc|paket|biblio)",
    // French
    r"\bne (?:pas|jamais) (?:\w+ )?\w+(?:er|ir|re)\b",
    r"\b(?:ne |n')(?:doit|doivent|dois|devez|devons|faut) (?:pas|jamais|en aucun cas)\b",
    r"(?:^|[,;:.] ?|\b(?:et|mais) )(?:surtout )?(?:ne |n')(?:touche|modifie|change|utilise|supprime|ajoute|efface|casse|crée|installe|renomme|fai|écri|mets|mettez|pousse|commite|emploie|déplace)\w* (?:pas|jamais|rien|aucune?)\b",
    r"\b(?:interdit|interdite|interdits|en aucun cas|sous aucun prétexte|surtout pas)\b",
    r"\b(?:utilise[zr]?|emploie|employez|modifie[zr]?) (?:uniquement|seulement|toujours|exclusivement)\b",
    r"(?:^|[,;:.] ?|\bet )(?:toujours|jamais|uniquement) \w",
    r"\b(?:doit|doivent|dois|devez) (?:toujours|impérativement|rester)\b",
    // Spanish
    r"(?:^|[,;:.¡] ?|\b(?:y|pero|por favor|favor) )no (?:toques?|toquen|modifiques?|modifiquen|cambies?|cambien|uses?|usen|utilices?|utilicen|borres?|borren|elimines?|eliminen|añadas?|añadan|agregues?|agreguen|crees|creen|hagas?|hagan|instales?|instalen|ejecutes?|ejecuten|escribas?|escriban|subas?|suban|rompas?|rompan|mezcles?|introduzcas?|muevas?|muevan|renombres?)\b",
    r"\bno (?:se )?(?:debe|debes|deben|debemos|deberías?|hay que|se puede tocar)\b",
    r"(?:^|[,;:.¡] ?|\b(?:y|pero) )(?:nunca|siempre|jamás) \w",
    r"\b(?:debe|debes|deben|deberías?) (?:siempre|nunca)\b",
    r"\b(?:us[ae]|utiliz[ae]|utilice) (?:solo|sólo|únicamente|solamente|siempre)\b|\b(?:solo|sólo|únicamente|solamente) (?:us[ae]|utiliz[ae]|utilice)\b",
    r"\b(?:prohibido|prohibida|bajo ninguna circunstancia|en ningún caso)\b",
    // Portuguese
    r"(?:^|[,;:.] ?|\b(?:e|mas|por favor|favor) )não (?:toque|mexa|altere|modifique|mude|use|utilize|apague|delete|remova|adicione|crie|faça|instale|execute|escreva|quebre|commite|toca|altera|mexe|renomeie|mova)m?\b",
    r"\bnão (?:se deve|deve|devem|devemos|deves)\b",
    r"(?:^|[,;:.] ?|\b(?:e|mas) )sempre \w",
    r"\b(?:use|usa|utilize) (?:apenas|somente|só|sempre)\b|\b(?:apenas|somente) (?:use|utilize)\b",
    r"\b(?:proibido|proibida|em hipótese alguma|de jeito nenhum|em nenhuma circunstância)\b",
    // Chinese
    r"(?:^|[^要])(?:不要|不得|禁止|切勿|请勿|請勿|请不要|請不要|不准|不许|不許|不可以|绝不|絕不|绝对不|絕對不|永远不|永遠不|必须|必須|务必|務必|只能|只使用|只用|仅使用|僅使用|仅用|只允许|只允許|始终|始終|一律)",
    r"在不.+(?:的情况下|的情況下|的前提下)",
    r"(?:^|[^特分區区個个級级類类鑑鉴識识性告])(?:别|別)(?:动|動|改|碰|删|刪|用|加|再|提交|修改|覆盖|覆蓋)",
    // Japanese
    r"ないで(?:ください|下さい|ほしい|欲しい|くれ|ね|よ|、|。|！|!|$)|ないこと[。！!]?$",
    r"(?:ては|では|ちゃ)(?:いけ|なら|だめ|ダメ)|禁止|必ず|絶対に|決して|(?:^|、)常に|べきでは(?:ない|ありません)",
    r"(?:のみ|だけ)(?:を|で)?(?:使|許|変更|編集|触|利用)|せずに|なければ(?:なら|いけ)",
];

/// Patterns in which the word behind them, which they capture, decides.
#[rustfmt::skip]
const ORDERS: &[(&str, &[&str])] = &[
    (r"(?:do not|don't|dont) (\w+)", &[
        "know", "think", "see", "understand", "worry", "mind", "care", "you", "we", "i", "they", "it",
        "remember", "get", "have", "need", "forget", "believe", "like", "recall", "hesitate", "really",
        "seem", "work", "feel", "love", "exist", "match", "even", "show", "actually",
    ]),
    (r"never (\w+)", &["mind", "seen", "been", "had", "heard", "got", "came", "knew", "did", "was", "were", "ran", "saw", "a", "the", "in", "again"]),
    (r"always (\w+)", &["been", "was", "a", "the", "had", "were", "in", "get", "got", "there", "seems"]),
    (r"(?:only use|use only) (\w+)", &["case"]),
    (r"only (touch|edit|change|modify|write|read|work|run|add|commit|push|install|import|call|create|support|allow|update|apply|fix|test|implement)\b", &[]),
    (r"(commit|use|change|edit|touch|run|fix|update|add|keep|test|review|push|modify) only \w", &[]),
    (r"avoid (\w+)", &["the", "that", "it"]),
    (r"stop (\w+ing)\b", &[]),
    (r"no (?:new |more |additional |external )(dependenc|librar|packages?|crates?|files?|comments?|emojis?|features?|tables?|columns?)", &[]),
];

/// What "without" is followed by where it forbids.
const WITHOUT: &[&str] = &[
    r"\bwithout (?:changing|touching|breaking|modifying|editing|altering|adding|removing|deleting|introducing|asking|rewriting|installing|committing|pushing|affecting|renaming|moving|losing|using|any (?:new|external|additional|other)|my (?:approval|permission|ok|consent))\b",
    r"\bohne\b.*\b(?:zu \w+n|\w+zu\w+n)\b",
    r"\bsans (?:modifier|toucher|changer|casser|ajouter|utiliser|supprimer|introduire|altérer|créer|installer|renommer)\b",
    r"\bsin (?:modificar|tocar|cambiar|romper|añadir|agregar|usar|eliminar|borrar|alterar|crear|instalar|introducir)\b",
    r"\bsem (?:modificar|alterar|tocar|mudar|quebrar|adicionar|usar|remover|apagar|criar|instalar|introduzir|mexer)\b",
];

/// First words of a sentence that describes.
#[rustfmt::skip]
const DESCRIBING: [&str; 36] = [
    "i", "it", "this", "that", "these", "those", "the", "he", "she", "they", "there", "when", "why", "how",
    "what", "where", "which", "who", "is", "are", "was", "were", "does", "did", "do", "has", "have", "if",
    "es", "das", "il", "elle", "wenn", "si", "yes", "no",
];

/// What a verb in the infinitive that follows says that somebody cannot, in
/// German: no order.
const UNABLE: &str = r"\b(?:kann|konnte|können|konnten|lässt|lassen)\b";

/// Orders in German that are an infinitive.
const NOT_DO: &str = r"\bnicht (?:\w+ )?(?:anfassen|ändern|verändern|löschen|anrühren|benutzen|verwenden|nutzen|committen|pushen|mergen|überschreiben|entfernen|umbenennen|installieren|aktualisieren|erstellen|anlegen|verschieben|formatieren)\b";

static CONSTRAINT: LazyLock<Regex> = LazyLock::new(|| any(CONSTRAINTS.iter().map(|one| (*one).to_owned())));
static FORBIDDEN_WITHOUT: LazyLock<Regex> =
    LazyLock::new(|| any(WITHOUT.iter().map(|one| (*one).to_owned())));
static NOT_TO_DO: LazyLock<[Regex; 2]> = LazyLock::new(|| [NOT_DO, UNABLE].map(|one| any([one.to_owned()])));
static ORDER: LazyLock<Vec<(Regex, &[&str])>> =
    LazyLock::new(|| ORDERS.iter().map(|(order, no)| (any([[CLAUSE, order].concat()]), *no)).collect());
static MUST: LazyLock<Regex> = LazyLock::new(|| any([r"\b(\w+) must (\w+)( \w+)?".to_owned()]));
static ASKED: LazyLock<Regex> = LazyLock::new(|| {
    any([r"^(?:ok(?:ay)?,? |great,? |and |so |now |then )?(?:(?:can|could|would|will) (?:you|we)|please|kannst|könntest|können|peux|pouvez|puedes|podrías|pode|poderia)\b".to_owned()])
});

#[expect(clippy::expect_used, reason = "the patterns are constants")]
fn any(patterns: impl IntoIterator<Item = String>) -> Regex {
    let patterns: Vec<_> = patterns.into_iter().collect();
    Regex::new(&patterns.join("|")).expect("a pattern of this file")
}

/// The sentence in lower case, with one kind of apostrophe, and with what is
/// quoted taken out.
fn plain(sentence: &str) -> String {
    let mut plain = String::with_capacity(sentence.len());
    let mut rest = sentence.chars();
    while let Some(c) = rest.next() {
        let closing = match c {
            '`' | '"' => Some(c),
            '“' | '„' => Some('”'),
            '«' => Some('»'),
            '「' => Some('」'),
            _ => None,
        };
        if let Some(closing) = closing
            && let Some(end) =
                rest.as_str().find(closing).or_else(|| rest.as_str().find('“').filter(|_| c == '„'))
        {
            plain.push_str(" x ");
            rest = rest.as_str().get(end..).unwrap_or_default().chars();
            rest.next();
            continue;
        }
        match c {
            '*' | '_' if !plain.ends_with(|c: char| c.is_alphanumeric()) => {}
            '*' => {}
            '’' | '‘' => plain.push('\''),
            c if c.is_whitespace() => plain.push(' '),
            c => plain.extend(c.to_lowercase()),
        }
    }
    plain.split(' ').filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ")
}

fn is_question(plain: &str) -> bool {
    let end = plain.trim_end_matches([')', '"', '\'', '”', '」', '*', ' ']);
    end.ends_with(['?', '？', '吗', '嗎', '呢']) || end.ends_with("吧?") || end.ends_with(" right")
}

/// Whether an order could be that short, and a sentence that long.
fn has_length(plain: &str) -> bool {
    let words = plain.split(' ').filter(|word| word.chars().any(char::is_alphanumeric)).count();
    words >= 3 || plain.chars().filter(|c| *c > '\u{2fff}').count() >= 4
}

/// Whether the user's `sentence` says what must be or must not be.
pub fn is_constraint(sentence: &str) -> bool {
    let plain = plain(sentence);
    if !has_length(&plain) {
        return false;
    }
    let is_request = ASKED.is_match(&plain);
    let first = plain.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default();
    let describes = DESCRIBING.contains(&first);
    let without = !describes && FORBIDDEN_WITHOUT.is_match(&plain);
    if is_question(&plain) {
        // A question may ask for something, and forbid something with it.
        return is_request && (without || is_ordered(&plain) || CONSTRAINT.is_match(&plain));
    }
    let [not_to_do, unable] = &*NOT_TO_DO;
    without
        || CONSTRAINT.is_match(&plain)
        || is_ordered(&plain)
        || is_demanded(&plain)
        || not_to_do.is_match(&plain) && !unable.is_match(&plain)
}

/// Whether a clause begins with an order, such as "don't touch".
fn is_ordered(plain: &str) -> bool {
    ORDER.iter().any(|(order, no)| {
        order.captures_iter(plain).any(|found| {
            let word = found.get(1).map_or("", |word| word.as_str());
            // What is done, was done or is being done is no order.
            let is_other_form = word.len() > 4
                && (word.ends_with("ed") && !matches!(word, "embed" | "proceed" | "exceed" | "shed")
                    || word.ends_with('s') && !word.ends_with("ss") && !no.is_empty() && word != "process");
            !no.contains(&word) && !is_other_form
        })
    })
}

/// Whether something "must" be, other than by conclusion.
fn is_demanded(plain: &str) -> bool {
    const NOT_BEFORE: [&str; 6] = ["there", "they", "i", "something", "someone", "a"];
    const NOT_AFTER: [&str; 6] = ["have", "admit", "say", "confess", "not", "never"];
    const CONCLUDED: [&str; 16] = [
        " a",
        " an",
        " some",
        " that",
        " because",
        " due",
        " something",
        " wrong",
        " missing",
        " in",
        " coming",
        " the",
        " nice",
        " using",
        " failing",
        " broken",
    ];
    MUST.captures_iter(plain).any(|found| {
        let group = |index| found.get(index).map_or("", |group: regex::Match<'_>| group.as_str());
        let [before, after, next] = [1, 2, 3].map(group);
        let is_concluded = after == "be" && (CONCLUDED.contains(&next) || before == "it");
        !NOT_BEFORE.contains(&before) && !NOT_AFTER.contains(&after) && !is_concluded
    })
}

/// Patterns of a decision, whoever states it.
#[rustfmt::skip]
const DECISIONS: &[&str] = &[
    // English
    r"\b(?:we|i)(?:'ve|'ll|'d| have| will| had)?(?: also| now| then| therefore| finally| already)? decided (?:to|on|against|not|that)\b",
    r"^(?:decision|decided|final decision):|\b(?:the|our|my) decision (?:is|was) (?:to|that)\b",
    r"\b(?:let's|let us|we'll|i'll|we're|i'm|we are|i am|we will|i will|we|i)(?: just| now| then)? (?:go|going|went|stick|sticking) with\b",
    r"(?:^|[,;:.—–(] ?|\b(?:and|so|but|that|then|therefore|because) )(?:we|i)(?:'ve|'ll| have| will)?(?: deliberately| intentionally)? (?:chose|chosen|opt for|opted (?:for|to)|settled on|agreed (?:to|on|that))\b",
    r"\b(?:we|i)(?:'ll|'ve| will| have)?(?: also| now| just| deliberately| intentionally| only)? (?:use|used|keep|kept|leave|switch|switched|drop|dropped|replaced?|avoid|avoided|prefer|preferred|moved|removed|skip|skipped|stay|stayed|left|pinned)\b.* (?:because|since|due to|so that|given that|to avoid)\b",
    r"\b(?:use|using|used|keep|choose|chose|prefer|go with|went with|switch(?:ed)? to)\b.*\b(?:instead of|rather than)\b.*\b(?:because|since|due to|to avoid|so that)\b",
    r"\b(?:instead of|rather than)\b.*\b(?:we|i)(?:'ll|'ve| will| have)?\b.* (?:because|since|due to|to avoid|so that)\b",
    // German
    r"\b(?:wir|ich)\b.*\bentschieden\b|\b(?:habe|haben)\b.*\bentschieden\b|^entscheidung:|\b(?:entscheiden|entscheide) (?:wir )?(?:uns|mich) (?:für|gegen)\b",
    r"\b(?:wir|ich) (?:nehmen|nehme|nutzen|verwenden|bleiben bei|bleibe bei|setzen auf)\b.*\b(?:weil|da|wegen|damit|denn)\b|\bwir (?:bleiben|gehen|machen weiter) (?:bei|mit)\b",
    r"\b(?:statt|anstatt)\b.*\b(?:weil|wegen|denn)\b",
    // French
    r"\b(?:nous avons|on a|j'ai) décidé\b|^décision ?:|\b(?:on|nous) (?:part|partons|reste|restons) (?:sur|avec)\b",
    r"\b(?:on|nous) (?:garde|gardons|prend|prenons|utilise|utilisons|choisit|choisissons)\b.*\b(?:car|parce qu|puisque|à cause)|\bplutôt que\b.*\b(?:car|parce qu)",
    // Spanish
    r"\b(?:decidimos|hemos decidido|he decidido|decidí)\b|^decisión:|\b(?:vamos con|nos quedamos con|optamos por|elegimos)\b",
    r"\b(?:usamos|usaremos|usar|usa|mantenemos|en lugar de|en vez de)\b.*\b(?:porque|ya que|debido a)\b",
    // Portuguese
    r"\b(?:decidimos|decidi|optamos por|escolhemos|ficamos com)\b|^decisão:|\bvamos (?:com o|com a|usar)\b",
    r"\b(?:usamos|usaremos|usar|use|mantemos|em vez de|ao invés de)\b.*\b(?:porque|já que|devido|pois)\b",
    // Chinese
    r"(?:决定|決定)(?:采用|採用|使用|用|改|不|把|将|將|先|放弃|放棄|选|選|保留)",
    r"(?:选择|選擇|采用|採用|改用|我们用|我們用|就用).+(?:因为|因為|由于|由於|原因是)|(?:因为|因為|由于|由於).+(?:选择|選擇|采用|採用|改用|我们用|我們用)",
    // Japanese
    r"ことに(?:し(?:ます|ました|た)|決め)|に決め(?:ました|た|ます)|を採用(?:し|する)",
    r"(?:ので|ため|から)、?.*(?:を使います|を使いました|にします|にしました|にしよう)",
];

/// Patterns of a decision in what the user says: an order with its reason.
const ORDERED_DECISIONS: &[&str] = &[
    r"(?:^|[,;:.] ?|\b(?:please|let's|and|so|ok|okay|then|we|just) )(?:use|keep|switch to|drop|prefer|stay with|stay on|avoid|pick|choose|stick to|stick with|go with)\b.* (?:because|since|due to|so that)\b",
    r"^(?:ok,? |okay,? |yes,? |no,? )?(?:go|stick|stay) with \w",
    r"(?:^|[,;:.] ?|\b(?:please|let's|and|so) )(?:use|prefer)\b.* (?:instead of|rather than) ",
];

/// A name and its reason, such as "Postgres, because of the licence".
const NAMED: &str = r"^(?:(?:[\w./+#-]+ ){0,3}[\w./+#-]+, (?:because|wegen|weil)|(?:[\w./+#-]+ )?[\w./+#-]+ (?:because of|wegen)) ";

/// One way rather than another, which the captured word begins: what is done
/// rather than doing another thing is told step by step, and is no decision.
const ALTERNATIVE: &str = r"\b(?:i'll|we'll|i will|we will|let's) .* (?:instead of|rather than) (?:just |merely |simply |only )?(\w+)";

static PREFERENCE: LazyLock<Regex> = LazyLock::new(|| any([ALTERNATIVE.to_owned()]));
static DECISION: LazyLock<Regex> = LazyLock::new(|| any(DECISIONS.iter().map(|one| (*one).to_owned())));
static ORDERED_DECISION: LazyLock<Regex> =
    LazyLock::new(|| any(ORDERED_DECISIONS.iter().map(|one| (*one).to_owned())));
static NAMED_DECISION: LazyLock<Regex> = LazyLock::new(|| any([NAMED.to_owned()]));
static OPEN: LazyLock<Regex> = LazyLock::new(|| {
    any([r"\b(?:if (?:we|you|i)|could|would|should (?:we|i)|might|whether|alternatively|wenn|falls|könnte|könnten|if)\b|如果|もし".to_owned()])
});
static FINITE: LazyLock<Regex> = LazyLock::new(|| {
    any([r"\b(?:is|are|was|were|has|have|had|does|do|did|it|this|that|i|we|you|they|not|fails|failed|failing|works|ist|sind|war|geht|yes|no|maybe|probably|mostly|only|just|also|simply|and|but|mainly)\b".to_owned()])
});

/// Whether `sentence`, said by `by`, states a decision.
pub fn is_decision(sentence: &str, by: Speaker) -> bool {
    let plain = plain(sentence);
    if !has_length(&plain) || is_question(&plain) {
        return false;
    }
    let is_open = || OPEN.is_match(&plain);
    let prefers = PREFERENCE
        .captures(&plain)
        .and_then(|found| found.get(1))
        .is_some_and(|other| !other.as_str().ends_with("ing"));
    if prefers || DECISION.is_match(&plain) {
        return !is_open();
    }
    if by != Speaker::User {
        return false;
    }
    let named = NAMED_DECISION.find(&plain).is_some_and(|head| !FINITE.is_match(head.as_str()));
    (named || ORDERED_DECISION.is_match(&plain)) && !is_open()
}
