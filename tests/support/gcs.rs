//! The part of the XML API of Google Cloud Storage that we use, in memory: no third-party server supports its
//! preconditions. Tests include it by `#[path]`.

use axum::{
    Router,
    body::{Body, Bytes, to_bytes},
    extract::{Path, Query, Request, State},
    http::{HeaderMap, Method, Response, StatusCode, header},
    routing::any,
};
use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, PoisonError},
};

const PAGE: usize = 1000;
const LAST_MODIFIED: &str = "Mon, 16 Nov 2026 10:00:00 GMT";

pub struct Gcs {
    pub url: String,
}

struct Bucket {
    name: String,
    token: String,
    contents: Mutex<Contents>,
}

#[derive(Default)]
struct Contents {
    objects: BTreeMap<String, (Bytes, u64)>,
    uploads: HashMap<String, BTreeMap<usize, Bytes>>,
    made: u64,
}

type Answer = Response<Body>;
type Parameters = HashMap<String, String>;

impl Gcs {
    /// One bucket, for clients with the token. Lives as long as the runtime.
    pub async fn start(bucket: &str, token: &str) -> Gcs {
        let bucket =
            Arc::new(Bucket { name: bucket.to_owned(), token: token.to_owned(), contents: Mutex::default() });
        let router = Router::new()
            .route("/{bucket}", any(listing))
            .route("/{bucket}/{*key}", any(object))
            .with_state(bucket);
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        tokio::spawn(async move { axum::serve(listener, router).await });
        Gcs { url }
    }
}

impl Bucket {
    fn refuse(&self, name: &str, headers: &HeaderMap) -> Option<Answer> {
        let given =
            headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok()).unwrap_or_default();
        if given != format!("Bearer {}", self.token) {
            return Some(failure(StatusCode::UNAUTHORIZED, "AuthenticationRequired"));
        }
        (name != self.name).then(|| failure(StatusCode::NOT_FOUND, "NoSuchBucket"))
    }
}

async fn listing(
    State(bucket): State<Arc<Bucket>>,
    Path(name): Path<String>,
    Query(query): Query<Parameters>,
    headers: HeaderMap,
) -> Answer {
    if let Some(refusal) = bucket.refuse(&name, &headers) {
        return refusal;
    }
    let contents = bucket.contents.lock().unwrap_or_else(PoisonError::into_inner);
    let parameter = |name: &str| query.get(name).map(String::as_str).unwrap_or_default();
    let (prefix, delimiter) = (parameter("prefix"), parameter("delimiter"));
    let after = parameter("start-after").max(parameter("continuation-token"));
    let (mut entries, mut last, mut cut) = (Vec::new(), "", false);
    for (key, (bytes, _)) in
        contents.objects.iter().filter(|(key, _)| key.starts_with(prefix) && key.as_str() > after)
    {
        let directory = key[prefix.len()..].split_once(delimiter).filter(|_| !delimiter.is_empty());
        let entry = match directory {
            Some((directory, _)) => {
                format!("<CommonPrefixes><Prefix>{prefix}{directory}{delimiter}</Prefix></CommonPrefixes>")
            }
            None => format!(
                "<Contents><Key>{key}</Key><Size>{}</Size><LastModified>2026-11-16T10:00:00Z</LastModified></Contents>",
                bytes.len()
            ),
        };
        // Each directory is listed once.
        if entries.last() != Some(&entry) {
            cut = entries.len() == PAGE;
            if cut {
                break;
            }
            entries.push(entry);
        }
        last = key;
    }
    let next =
        if cut { format!("<NextContinuationToken>{last}</NextContinuationToken>") } else { String::new() };
    let entries = entries.concat();
    xml(&format!("<ListBucketResult>{entries}{next}</ListBucketResult>"))
}

async fn object(
    State(bucket): State<Arc<Bucket>>,
    Path((name, key)): Path<(String, String)>,
    Query(query): Query<Parameters>,
    request: Request,
) -> Answer {
    if let Some(refusal) = bucket.refuse(&name, request.headers()) {
        return refusal;
    }
    let (head, body) = request.into_parts();
    let body = to_bytes(body, usize::MAX).await.expect("a body");
    let mut contents = bucket.contents.lock().unwrap_or_else(PoisonError::into_inner);
    let upload = query.get("uploadId").map(String::as_str);
    match (head.method, upload) {
        (Method::POST, None) => contents.begin(),
        (Method::PUT, Some(id)) => contents.take_part(id, &query, body),
        (Method::POST, Some(id)) => contents.complete(id, key),
        (Method::DELETE, Some(id)) => match contents.uploads.remove(id) {
            Some(_) => answer(StatusCode::NO_CONTENT),
            None => failure(StatusCode::NOT_FOUND, "NoSuchUpload"),
        },
        (Method::PUT, None) => {
            let once = head.headers.get("x-goog-if-generation-match").is_some_and(|value| value == "0");
            if once && contents.objects.contains_key(&key) {
                return failure(StatusCode::PRECONDITION_FAILED, "PreconditionFailed");
            }
            let generation = contents.put(key, body);
            tagged(StatusCode::OK, generation, Body::empty())
        }
        (Method::GET, None) => contents.get(&key, &head.headers),
        (Method::HEAD, None) => match contents.objects.get(&key) {
            Some((bytes, generation)) => {
                let mut answer = tagged(StatusCode::OK, *generation, Body::empty());
                answer.headers_mut().insert(header::CONTENT_LENGTH, bytes.len().into());
                answer
            }
            None => answer(StatusCode::NOT_FOUND),
        },
        (Method::DELETE, None) => match contents.objects.remove(&key) {
            Some(_) => answer(StatusCode::NO_CONTENT),
            None => failure(StatusCode::NOT_FOUND, "NoSuchKey"),
        },
        _ => failure(StatusCode::METHOD_NOT_ALLOWED, "MethodNotAllowed"),
    }
}

impl Contents {
    fn put(&mut self, key: String, bytes: Bytes) -> u64 {
        self.made += 1;
        self.objects.insert(key, (bytes, self.made));
        self.made
    }

    fn begin(&mut self) -> Answer {
        self.made += 1;
        let id = format!("upload-{}", self.made);
        let answer = format!(
            "<InitiateMultipartUploadResult><UploadId>{id}</UploadId></InitiateMultipartUploadResult>"
        );
        self.uploads.insert(id, BTreeMap::new());
        xml(&answer)
    }

    fn take_part(&mut self, id: &str, query: &Parameters, body: Bytes) -> Answer {
        let number = query.get("partNumber").and_then(|number| number.parse().ok());
        let (Some(parts), Some(number)) = (self.uploads.get_mut(id), number) else {
            return failure(StatusCode::NOT_FOUND, "NoSuchUpload");
        };
        parts.insert(number, body);
        tagged(StatusCode::OK, number as u64, Body::empty())
    }

    fn complete(&mut self, id: &str, key: String) -> Answer {
        let Some(parts) = self.uploads.remove(id) else {
            return failure(StatusCode::NOT_FOUND, "NoSuchUpload");
        };
        let whole: Vec<Bytes> = parts.into_values().collect();
        let generation = self.put(key, whole.concat().into());
        xml(&format!(
            "<CompleteMultipartUploadResult><ETag>g{generation}</ETag></CompleteMultipartUploadResult>"
        ))
    }

    fn get(&self, key: &str, headers: &HeaderMap) -> Answer {
        let Some((bytes, generation)) = self.objects.get(key) else {
            return failure(StatusCode::NOT_FOUND, "NoSuchKey");
        };
        let asked = headers.get(header::RANGE).and_then(|range| range.to_str().ok()?.strip_prefix("bytes="));
        let Some((begin, end)) = asked.and_then(|range| range.split_once('-')) else {
            return tagged(StatusCode::OK, *generation, bytes.clone().into());
        };
        let begin: usize = begin.parse().expect("a number");
        let end = end.parse::<usize>().map_or(bytes.len(), |last| (last + 1).min(bytes.len()));
        if begin >= end {
            return failure(StatusCode::RANGE_NOT_SATISFIABLE, "InvalidRange");
        }
        let mut answer = tagged(StatusCode::PARTIAL_CONTENT, *generation, bytes.slice(begin..end).into());
        let range = format!("bytes {begin}-{}/{}", end - 1, bytes.len());
        answer.headers_mut().insert(header::CONTENT_RANGE, range.parse().expect("a header"));
        answer
    }
}

fn answer(status: StatusCode) -> Answer {
    Response::builder().status(status).body(Body::empty()).expect("an answer")
}

fn tagged(status: StatusCode, generation: u64, body: Body) -> Answer {
    Response::builder()
        .status(status)
        .header(header::ETAG, format!("\"g{generation}\""))
        .header(header::LAST_MODIFIED, LAST_MODIFIED)
        .header("x-goog-generation", generation)
        .body(body)
        .expect("an answer")
}

fn xml(text: &str) -> Answer {
    Response::new(text.to_owned().into())
}

fn failure(status: StatusCode, code: &str) -> Answer {
    let mut answer = xml(&format!("<Error><Code>{code}</Code><Message>{code} it is.</Message></Error>"));
    *answer.status_mut() = status;
    answer
}
