//! What a request is about, read from its method and path.

use http::Method;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Route {
    pub(crate) verb: &'static str,
    pub(crate) resource: String,
    pub(crate) subresource: String,
    pub(crate) namespace: String,
    pub(crate) name: String,
}

impl Route {
    pub(crate) fn of(method: &Method, path: &str, query: &str) -> Option<Self> {
        let mut parts = path.split('/').filter(|part| !part.is_empty());
        // /api/v1 or /apis/GROUP/VERSION; the names of resources differ enough to do without the group.
        let skip = match parts.next()? {
            "api" => 1,
            "apis" => 2,
            _ => return None,
        };
        let mut parts: Vec<&str> = parts.skip(skip).collect();
        let mut namespace = "";
        if parts.len() > 2 && parts[0] == "namespaces" {
            namespace = parts[1];
            parts.drain(..2);
        }
        let resource = *parts.first()?;
        let name = parts.get(1).copied().unwrap_or_default();
        let watching = query.split('&').any(|pair| pair == "watch=true" || pair == "watch=1");
        let verb = match *method {
            Method::GET if watching => "watch",
            Method::GET if name.is_empty() => "list",
            Method::GET => "get",
            Method::POST => "create",
            Method::PUT => "update",
            Method::PATCH => "patch",
            Method::DELETE => "delete",
            _ => return None,
        };
        Some(Self {
            verb,
            resource: resource.to_owned(),
            subresource: parts.get(2).copied().unwrap_or_default().to_owned(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        })
    }

    /// With the subresource: "pods/status".
    pub(crate) fn full_resource(&self) -> String {
        if self.subresource.is_empty() {
            self.resource.clone()
        } else {
            format!("{}/{}", self.resource, self.subresource)
        }
    }
}

/// One parameter of a query, decoded.
pub(crate) fn parameter(query: &str, name: &str) -> Option<String> {
    let raw = query.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='))?;
    let mut decoded = Vec::new();
    let mut bytes = raw.bytes();
    while let Some(byte) = bytes.next() {
        decoded.push(match byte {
            b'+' => b' ',
            b'%' => {
                let digits = [bytes.next()?, bytes.next()?];
                u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?
            }
            other => other,
        });
    }
    String::from_utf8(decoded).ok()
}
