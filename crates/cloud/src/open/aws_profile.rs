//! Reads keys from the profiles file of AWS's own tools, because object_store does not.

use super::EnvironmentVariables;
use crate::bucket_error::{BucketError, BucketErrorCode};
use secrecy::SecretString;
use std::path::PathBuf;

pub(super) struct AwsProfile {
    pub(super) key_id: String,
    pub(super) secret: SecretString,
    pub(super) token: Option<SecretString>,
}

/// The profile that the environment names, else the default profile. Only a named profile must exist.
pub(super) fn find(env: &EnvironmentVariables) -> Result<Option<AwsProfile>, BucketError> {
    let asked = env.get("AWS_PROFILE");
    let path = match env.get("AWS_SHARED_CREDENTIALS_FILE") {
        Some(path) => Some(PathBuf::from(path)),
        None => env.get("HOME").map(|home| PathBuf::from(home).join(".aws/credentials")),
    };
    let text = path.as_ref().and_then(|path| std::fs::read_to_string(path).ok()).unwrap_or_default();
    let found = read(&text, asked.map_or("default", String::as_str));
    match (found, asked) {
        (None, Some(name)) => {
            let file = path.map_or("~/.aws/credentials".to_owned(), |path| path.display().to_string());
            let sentence = format!(
                "There are no keys for the profile {name} in {file}: add them, or set those that `aws configure \
                 export-credentials --format env` prints."
            );
            Err(BucketError::new(BucketErrorCode::NoCredentials, sentence))
        }
        (found, _) => Ok(found),
    }
}

fn read(text: &str, name: &str) -> Option<AwsProfile> {
    let lines = text.lines().map(str::trim);
    let section = lines
        .skip_while(|line| {
            line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).map(str::trim) != Some(name)
        })
        .skip(1)
        .take_while(|line| !line.starts_with('['));
    let (mut key_id, mut secret, mut token) = (None, None, None);
    for (key, value) in section.filter_map(|line| line.split_once('=')) {
        match key.trim() {
            "aws_access_key_id" => key_id = Some(value.trim().to_owned()),
            "aws_secret_access_key" => secret = Some(SecretString::from(value.trim())),
            "aws_session_token" => token = Some(SecretString::from(value.trim())),
            _ => {}
        }
    }
    Some(AwsProfile { key_id: key_id?, secret: secret?, token })
}

#[cfg(test)]
mod tests {
    use super::read;
    use secrecy::ExposeSecret;

    const FILE: &str = "# mine\n[default]\naws_access_key_id = AKID\naws_secret_access_key=se=cret\n\n[ work ]\n\
                        aws_access_key_id=AKWORK\naws_secret_access_key = w\naws_session_token = t\n[half]\n\
                        aws_access_key_id = AKHALF\n";

    fn keys(name: &str) -> Option<(String, String, Option<String>)> {
        let found = read(FILE, name)?;
        let token = found.token.map(|token| token.expose_secret().to_owned());
        Some((found.key_id, found.secret.expose_secret().to_owned(), token))
    }

    #[test]
    fn a_profile_is_read_from_its_own_section() {
        assert_eq!(keys("default"), Some(("AKID".into(), "se=cret".into(), None)));
        assert_eq!(keys("work"), Some(("AKWORK".into(), "w".into(), Some("t".into()))));
        assert_eq!(keys("half"), None);
        assert_eq!(keys("other"), None);
    }
}
