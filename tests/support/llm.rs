//! A model's provider that does what a script says, over real HTTP.

#![allow(dead_code, reason = "each test file uses its part of it")]

use secrecy::SecretString;
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use turnkeep::clock;
use turnkeep::provider::Api;
use turnkeep::settings::Settings;

/// A model that runs somewhere, behind OpenAI's Chat Completions.
#[derive(Debug)]
pub(crate) struct RealModel {
    /// URL of the API, with `/v1` at its end.
    pub(crate) endpoint: String,
    /// What the API calls it.
    pub(crate) model: String,
    pub(crate) key: Option<SecretString>,
}

impl RealModel {
    /// The one that the environment names; none, with a word about it, if that names none.
    pub(crate) fn named() -> Option<Self> {
        let variable = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
        let Some(endpoint) = variable("TURNKEEP_TEST_LLM_URL") else {
            println!(
                "skipped: TURNKEEP_TEST_LLM_URL names no OpenAI-compatible endpoint, http://HOST:PORT/v1"
            );
            return None;
        };
        let model = variable("TURNKEEP_TEST_LLM_MODEL").unwrap_or_else(|| "default".to_owned());
        Some(Self { endpoint, model, key: variable("TURNKEEP_TEST_LLM_KEY").map(Into::into) })
    }
}

/// Has the model of that name at that URL make summaries.
pub(crate) fn with_model(url: &str, name: &str) -> impl Fn(&mut Settings) + use<> {
    let (url, name) = (url.to_owned(), name.to_owned());
    move |settings| {
        settings.summarizer.api = Some(Api::Openai);
        settings.summarizer.endpoint = Some(url.clone());
        settings.summarizer.model.clone_from(&name);
    }
}

/// What the server does with a request.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// Answers with status, headers and body.
    Answer(u16, Vec<(&'static str, String)>, String),
    /// Answers nothing, and keeps the connection.
    Hang,
    /// Breaks the connection without an answer.
    Reset,
    /// Begins to answer, and breaks the connection amid the body.
    ResetAmidBody,
    /// Answers 200 with the body, a byte at a time with a pause before each.
    Drip(String, Duration),
    /// Answers 200 with so many bytes of body.
    Huge(usize),
}

impl Step {
    /// Success with a body.
    pub(crate) fn ok(body: &Value) -> Self {
        Self::Answer(200, Vec::new(), body.to_string())
    }

    /// A failure with a body.
    pub(crate) fn status(status: u16, body: &Value) -> Self {
        Self::Answer(status, Vec::new(), body.to_string())
    }
}

/// An answer of Chat Completions.
pub(crate) fn openai_answer(text: &str, finish_reason: &str) -> Value {
    json!({
        "id": "chatcmpl-1",
        "model": "served-1",
        "choices": [{"index": 0, "finish_reason": finish_reason, "message": {"role": "assistant", "content": text}}],
        "usage": {"prompt_tokens": 100, "completion_tokens": 20, "prompt_tokens_details": {"cached_tokens": 30}},
    })
}

/// An answer of Anthropic's Messages.
pub(crate) fn anthropic_answer(text: &str, stop_reason: &str) -> Value {
    json!({
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "served-1",
        "content": [{"type": "thinking", "thinking": "hm", "signature": "x"}, {"type": "text", "text": text}],
        "stop_reason": stop_reason,
        "usage": {
            "input_tokens": 70,
            "output_tokens": 20,
            "cache_read_input_tokens": 30,
            "cache_creation_input_tokens": 5,
        },
    })
}

/// A request as it came in.
#[derive(Clone, Debug)]
pub(crate) struct Received {
    pub(crate) method: String,
    pub(crate) path: String,
    /// Names in lower case.
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Value,
}

impl Received {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }
}

/// A provider. It ends with the test.
#[derive(Clone, Debug)]
pub(crate) struct Llm {
    /// `http://` and its address.
    pub(crate) url: String,
    script: Arc<Mutex<VecDeque<Step>>>,
    received: Arc<Mutex<Vec<Received>>>,
    load: Arc<Mutex<Load>>,
}

/// Requests that are being answered.
#[derive(Debug, Default)]
struct Load {
    now: usize,
    most: usize,
}

/// One of them, until it is dropped.
struct Busy(Arc<Mutex<Load>>);

impl Busy {
    fn begin(load: &Arc<Mutex<Load>>) -> Self {
        let mut now = load.lock().unwrap();
        now.now += 1;
        now.most = now.most.max(now.now);
        Self(load.clone())
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.lock().unwrap().now -= 1;
    }
}

impl Llm {
    /// Does one step with each request. The last is done again and again.
    pub(crate) async fn start(steps: impl IntoIterator<Item = Step>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let script = Arc::new(Mutex::new(steps.into_iter().collect()));
        let llm = Self { url, script, received: Arc::default(), load: Arc::default() };
        let server = llm.clone();
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let server = server.clone();
                tokio::spawn(async move {
                    // A client that gives up is no failure of the server's.
                    let _ = server.serve(stream).await;
                });
            }
        });
        llm
    }

    /// Puts steps in the place of those that are left.
    pub(crate) fn script(&self, steps: impl IntoIterator<Item = Step>) {
        *self.script.lock().unwrap() = steps.into_iter().collect();
    }

    /// The requests so far.
    pub(crate) fn received(&self) -> Vec<Received> {
        self.received.lock().unwrap().clone()
    }

    /// The most requests that were answered at the same time.
    pub(crate) fn most_at_once(&self) -> usize {
        self.load.lock().unwrap().most
    }

    fn next_step(&self) -> Step {
        let mut script = self.script.lock().unwrap();
        match script.len() {
            0 => panic!("no step for a request"),
            1 => script[0].clone(),
            _ => script.pop_front().unwrap(),
        }
    }

    async fn serve(&self, stream: TcpStream) -> std::io::Result<()> {
        let mut stream = BufReader::new(stream);
        while let Some(received) = read(&mut stream).await? {
            self.received.lock().unwrap().push(received);
            let _busy = Busy::begin(&self.load);
            match self.next_step() {
                Step::Answer(status, headers, body) => {
                    let headers = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n"));
                    let headers = headers.collect::<Vec<_>>().concat();
                    let head =
                        format!("HTTP/1.1 {status} X\r\n{headers}content-length: {}\r\n\r\n", body.len());
                    stream.write_all((head + &body).as_bytes()).await?;
                }
                Step::Hang => std::future::pending().await,
                Step::Reset => return stream.get_ref().set_zero_linger(),
                Step::ResetAmidBody => {
                    stream
                        .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n{\"choices\": [")
                        .await?;
                    stream.flush().await?;
                    return Ok(());
                }
                Step::Drip(body, pause) => {
                    let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len());
                    stream.write_all(head.as_bytes()).await?;
                    for byte in body.bytes() {
                        clock::sleep(pause).await;
                        stream.write_all(&[byte]).await?;
                        stream.flush().await?;
                    }
                }
                Step::Huge(bytes) => {
                    let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {bytes}\r\n\r\n");
                    stream.write_all(head.as_bytes()).await?;
                    let piece = vec![b' '; 64 * 1024];
                    let mut left = bytes;
                    while left > 0 {
                        let now = left.min(piece.len());
                        stream.write_all(&piece[..now]).await?;
                        left -= now;
                    }
                }
            }
            stream.flush().await?;
        }
        Ok(())
    }
}

/// The next request of a connection; nothing if it has ended.
async fn read(stream: &mut BufReader<TcpStream>) -> std::io::Result<Option<Received>> {
    let mut line = String::new();
    if stream.read_line(&mut line).await? == 0 {
        return Ok(None);
    }
    let mut words = line.split_whitespace().map(str::to_owned);
    let (method, path) = (words.next().unwrap(), words.next().unwrap());
    let mut headers = Vec::new();
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).await?;
        let Some((name, value)) = line.trim_end().split_once(':') else { break };
        headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
    }
    let length = headers.iter().find(|(name, _)| name == "content-length");
    let mut body = vec![0; length.map_or(0, |(_, length)| length.parse().unwrap())];
    stream.read_exact(&mut body).await?;
    let body = serde_json::from_slice(&body).unwrap_or_default();
    Ok(Some(Received { method, path, headers, body }))
}
