//! The GET request of a probe or a hook: sent, and sent on where the answer says so. What the last answer means is decided
//! elsewhere.

use http::{HeaderMap, HeaderName, HeaderValue, header};
use http_body_util::{BodyExt, Empty};
use hyper::body::{Bytes, Incoming};
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::HTTPGetAction;
use keelson_core::probe::{AfterAnswer, HttpTarget, after_answer};
use tokio_util::task::AbortOnDropHandle;

use crate::probe::handler::{Place, destination, dial_words};
use crate::probe::insecure_tls::{self, TlsFailure};
use crate::probe::resolver::Resolver;

/// As servers' logs know them.
pub const PROBE_AGENT: &str = "kube-probe/1.36";
pub const HOOK_AGENT: &str = "kube-lifecycle/1.36";

/// An answer longer than this proves nothing more, and must not fill the agent's memory.
const BODY_LIMIT: usize = 10 * 1024;

pub struct Get {
    target: HttpTarget,
    headers: HeaderMap,
    /// Instead of the target's.
    host: Option<HeaderValue>,
    resolver: Resolver,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum NoAnswer {
    #[error(transparent)]
    Tls(#[from] TlsFailure),
    #[error("{0}")]
    Other(String),
}

pub struct Answer {
    pub status: u16,
    location: String,
    body: Incoming,
    /// The connection ends with the answer: a probe holds no socket between two runs.
    _connection: AbortOnDropHandle<hyper::Result<()>>,
}

impl Get {
    pub fn new(place: &Place, action: &HTTPGetAction, agent: &'static str) -> Result<Self, String> {
        let (host, port) = destination(place, action.host.as_deref(), &action.port)?;
        let tls = action.scheme.as_deref().is_some_and(|s| s.eq_ignore_ascii_case("https"));
        let target = HttpTarget::new(tls, &host, port, action.path.as_deref().unwrap_or("/"));
        let (headers, host) = headers(action, agent)?;
        Ok(Self { target, headers, host, resolver: place.resolver.clone() })
    }

    pub fn url(&self) -> String {
        self.target.url()
    }

    pub fn authority(&self) -> &str {
        &self.target.authority
    }

    /// The same without TLS, and without what was meant for nobody else to read.
    #[must_use]
    pub fn in_plain(mut self) -> Self {
        self.target.tls = false;
        self.headers.remove(header::AUTHORIZATION);
        self
    }

    /// Follows redirects; the answer is the last one.
    pub async fn send(&self) -> Result<Answer, NoAnswer> {
        let (mut at, mut host) = (self.target.clone(), self.host.clone());
        let mut sent = 0;
        loop {
            let answer = self.exchange(&at, host.as_ref()).await?;
            sent += 1;
            match after_answer(&self.target, &at, sent, answer.status, &answer.location) {
                AfterAnswer::Judge => return Ok(answer),
                AfterAnswer::Fail(why) => return Err(NoAnswer::Other(why)),
                AfterAnswer::Follow { to, keeps_host } => {
                    at = to;
                    host = host.filter(|_| keeps_host);
                }
            }
        }
    }

    async fn exchange(&self, at: &HttpTarget, host: Option<&HeaderValue>) -> Result<Answer, NoAnswer> {
        let stream = self.resolver.connect(&at.host, at.port).await;
        let stream = stream.map_err(|e| NoAnswer::Other(dial_words(&at.host, at.port, &e)))?;
        let _ = stream.set_nodelay(true);
        let invalid = |e: http::Error| NoAnswer::Other(format!("the request is not valid HTTP: {e}"));
        let host = match host {
            Some(host) => host.clone(),
            None => HeaderValue::from_str(&at.authority).map_err(|e| invalid(e.into()))?,
        };
        let mut request = hyper::Request::get(&at.path).body(Empty::new()).map_err(invalid)?;
        *request.headers_mut() = self.headers.clone();
        request.headers_mut().insert(header::HOST, host);
        request.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        if at.tls {
            let tls = insecure_tls::connect(&at.host, stream).await?;
            answered(TokioIo::new(tls), request).await
        } else {
            answered(TokioIo::new(stream), request).await
        }
        .map_err(|e| NoAnswer::Other(keelson_kit::error_chain::chain(&e)))
    }
}

impl Answer {
    /// As much of it as there is room for. An error: its end did not come.
    pub async fn read_body(mut self) -> Result<Vec<u8>, String> {
        let mut read = vec![];
        while read.len() < BODY_LIMIT
            && let Some(frame) = self.body.frame().await
        {
            let frame = frame.map_err(|e| keelson_kit::error_chain::chain(&e))?;
            read.extend_from_slice(frame.data_ref().map_or(&[], |data| data));
        }
        read.truncate(BODY_LIMIT);
        Ok(read)
    }
}

async fn answered<I>(io: I, request: hyper::Request<Empty<Bytes>>) -> hyper::Result<Answer>
where
    I: hyper::rt::Read + hyper::rt::Write + Unpin + Send + 'static,
{
    let (mut sender, connection) = hyper::client::conn::http1::handshake(io).await?;
    let connection = AbortOnDropHandle::new(tokio::spawn(connection));
    let response = sender.send_request(request).await?;
    let location = response.headers().get(header::LOCATION).map(HeaderValue::as_bytes).unwrap_or_default();
    Ok(Answer {
        status: response.status().as_u16(),
        location: String::from_utf8_lossy(location).into_owned(),
        body: response.into_body(),
        _connection: connection,
    })
}

/// What the pod asks for and the defaults beside it; Host by itself, because a redirect may take it away.
fn headers(action: &HTTPGetAction, agent: &'static str) -> Result<(HeaderMap, Option<HeaderValue>), String> {
    let invalid = |name: &str| format!("the header {name:?} is not valid HTTP");
    let (mut headers, mut host) = (HeaderMap::new(), None);
    for h in action.http_headers.iter().flatten() {
        let name = HeaderName::from_bytes(h.name.as_bytes()).map_err(|_| invalid(&h.name))?;
        let value = HeaderValue::from_str(&h.value).map_err(|_| invalid(&h.name))?;
        if name == header::HOST {
            host = host.or(Some(value).filter(|v| !v.is_empty()));
        } else {
            headers.append(name, value);
        }
    }
    for (name, default) in [(header::USER_AGENT, agent), (header::ACCEPT, "*/*")] {
        match headers.get(&name) {
            None => drop(headers.insert(name, HeaderValue::from_static(default))),
            // An empty value takes the default away.
            Some(value) if value.is_empty() => drop(headers.remove(name)),
            Some(_) => {}
        }
    }
    Ok((headers, host))
}

#[cfg(test)]
mod tests;
