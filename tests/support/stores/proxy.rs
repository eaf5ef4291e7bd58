//! A TCP proxy before Postgres that does harm at commits.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{oneshot, watch};

/// What happens to a commit: to `COMMIT`, or to the statement that appends a turn
/// in a transaction of its own. The client's connection breaks, but for a
/// statement that is refused.
#[derive(Debug)]
pub(crate) enum Harm {
    /// It never reaches the server.
    Swallow,
    /// It reaches the server, whose answer does not reach the client.
    SwallowAnswer,
    /// It reaches the server once the first is told, and the second is told when
    /// the server has answered.
    Delay(oneshot::Receiver<()>, oneshot::Sender<()>),
    /// It reaches the server, and the client gets this for an answer.
    Answer(Vec<u8>),
    /// It never reaches the server, and the client gets this for an answer.
    Refuse(Vec<u8>),
}

/// A proxy. It ends with the test.
#[derive(Debug)]
pub(crate) struct Proxy {
    address: SocketAddr,
    harms: Arc<Mutex<Vec<Harm>>>,
    /// How often it fell silent: older connections are.
    silence: watch::Sender<u64>,
}

impl Proxy {
    /// A proxy before the server that a URL names.
    pub(crate) async fn before(url: &str) -> Self {
        let server = authority(url).to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let harms = Arc::new(Mutex::default());
        let (silence, silenced) = watch::channel(0);
        tokio::spawn({
            let harms = Arc::clone(&harms);
            async move {
                loop {
                    let (client, _) = listener.accept().await.unwrap();
                    let server = TcpStream::connect(&server).await.unwrap();
                    let made = *silenced.borrow();
                    tokio::spawn(pass(client, server, Arc::clone(&harms), silenced.clone(), made));
                }
            }
        });
        Self { address, harms, silence }
    }

    /// The URL with the proxy in place of the server.
    pub(crate) fn url(&self, url: &str) -> String {
        url.replacen(authority(url), &self.address.to_string(), 1)
    }

    /// Does harm to the next commit.
    pub(crate) fn arm(&self, harm: Harm) {
        self.harms.lock().unwrap().push(harm);
    }

    /// Whether all harm is done.
    pub(crate) fn is_spent(&self) -> bool {
        self.harms.lock().unwrap().is_empty()
    }

    /// From now on nothing passes through the connections that there are, and
    /// neither end is told.
    pub(crate) fn silence(&self) {
        self.silence.send_modify(|count| *count += 1);
    }
}

/// `host:port` of a URL.
fn authority(url: &str) -> &str {
    let rest = url.split_once("://").unwrap().1;
    let rest = rest.split_once('/').map_or(rest, |(authority, _)| authority);
    rest.rsplit_once('@').map_or(rest, |(_, authority)| authority)
}

/// How the statement begins that appends a turn in a transaction of its own.
const APPEND: &[u8] = b"WITH moved AS (UPDATE head";

/// The strings with which a message's body begins: of `Parse` the statement's
/// name, of `Bind` the portal's and then the statement's.
fn strings(message: &[u8]) -> impl Iterator<Item = Vec<u8>> {
    message[5..].split(|byte| *byte == 0).map(<[u8]>::to_vec)
}

async fn pass(
    mut client: TcpStream,
    mut server: TcpStream,
    harms: Arc<Mutex<Vec<Harm>>>,
    mut silenced: watch::Receiver<u64>,
    made: u64,
) {
    client.set_nodelay(true).unwrap();
    server.set_nodelay(true).unwrap();
    let (mut asked, mut answered) = (vec![0; 1 << 16], vec![0; 1 << 16]);
    let mut append = None;
    loop {
        tokio::select! {
            biased;
            () = async { drop(silenced.wait_for(|count| *count > made).await) } => std::future::pending().await,
            read = client.read(&mut asked) => {
                let Ok(len @ 1..) = read else { return };
                // One question at a time, so that it stands alone in what is read.
                let question = &asked[..len];
                if question.windows(APPEND.len()).any(|text| text == APPEND) {
                    append = strings(question).next();
                }
                let is_append = append.is_some() && question[0] == b'B' && strings(question).nth(1) == append;
                let is_commit = is_append || question.ends_with(b"COMMIT\0");
                let harm = is_commit.then(|| harms.lock().unwrap().pop()).flatten();
                if let Some(Harm::Refuse(instead)) = &harm && is_append {
                    client.write_all(instead).await.unwrap();
                    continue;
                }
                if let Some(harm) = harm {
                    do_harm(harm, client, server, &asked[..len]).await;
                    return;
                }
                if server.write_all(&asked[..len]).await.is_err() {
                    return;
                }
            }
            read = server.read(&mut answered) => {
                let Ok(len @ 1..) = read else { return };
                if client.write_all(&answered[..len]).await.is_err() {
                    return;
                }
            }
        }
    }
}

async fn do_harm(harm: Harm, mut client: TcpStream, mut server: TcpStream, commit: &[u8]) {
    let mut answer = vec![0; 1 << 10];
    match harm {
        Harm::Swallow => {}
        Harm::SwallowAnswer => {
            server.write_all(commit).await.unwrap();
            drop(client);
            let _ = server.read(&mut answer).await;
        }
        Harm::Delay(told, done) => {
            drop(client);
            told.await.unwrap();
            server.write_all(commit).await.unwrap();
            let _ = server.read(&mut answer).await;
            let _ = done.send(());
        }
        Harm::Answer(instead) => {
            server.write_all(commit).await.unwrap();
            let _ = server.read(&mut answer).await;
            client.write_all(&instead).await.unwrap();
        }
        Harm::Refuse(instead) => {
            client.write_all(&instead).await.unwrap();
            // Until the client has read it and hangs up.
            let _ = client.read(&mut answer).await;
        }
    }
}

/// An error as Postgres sends it.
pub(crate) fn error_response(severity: &str, sqlstate: &str) -> Vec<u8> {
    let mut fields = Vec::new();
    for (kind, value) in [(b'S', severity), (b'V', severity), (b'C', sqlstate), (b'M', "made up")] {
        fields.push(kind);
        fields.extend_from_slice(value.as_bytes());
        fields.push(0);
    }
    fields.push(0);
    let mut message = vec![b'E'];
    message.extend_from_slice(&u32::try_from(fields.len() + 4).unwrap().to_be_bytes());
    message.extend_from_slice(&fields);
    if severity == "ERROR" {
        // Ready for the next question, outside of a transaction.
        message.extend_from_slice(&[b'Z', 0, 0, 0, 5, b'I']);
    }
    message
}
