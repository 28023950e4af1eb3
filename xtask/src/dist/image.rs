//! The image: an archive of an OCI layout, with the files of the release in /opt/ironwarp and nothing else. It
//! is not for running, but to copy the files from into an image with the programs that are to run.

use super::release::{Release, VERSION, gzip, sha256};
use crate::shell::{Result, at, command, run};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;

/// The files that are needed to run programs.
const FILES: [&str; 5] = ["bin", "lib", "share", "LICENSE-APACHE", "LICENSE-MIT"];
const FOLDER: &str = "opt/ironwarp";

pub(super) fn pack(release: &Release) -> Result {
    let layout = release.room("oci")?;
    let blobs = layout.join("blobs/sha256");
    fs::create_dir_all(&blobs).map_err(at(&blobs))?;

    let layer = blobs.join("layer");
    // Not the targets of links.
    let place = format!("--transform=s:^:{FOLDER}/:S");
    release.tar(&[&place], &release.tree(), &FILES, &layer)?;
    let unpacked = sha256(&layer)?;
    gzip(&layer)?;
    let layer = keep(&blobs, &layer.with_extension("gz"), "application/vnd.oci.image.layer.v1.tar+gzip")?;

    let created = release.date("+%Y-%m-%dT%H:%M:%SZ")?;
    let labels = json!({
        "org.opencontainers.image.title": "ironwarp",
        "org.opencontainers.image.version": VERSION,
        "org.opencontainers.image.created": created,
        "org.opencontainers.image.licenses": "Apache-2.0 OR MIT",
    });
    let config = json!({
        "created": created,
        "architecture": Release::architecture()?,
        "os": "linux",
        "config": {"Labels": labels},
        "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{unpacked}")]},
        "history": [{"created": created, "created_by": "cargo xtask dist"}],
    });
    let config = keep_json(&blobs, &config, "application/vnd.oci.image.config.v1+json")?;
    let kind = "application/vnd.oci.image.manifest.v1+json";
    let manifest = json!({
        "schemaVersion": 2, "mediaType": kind, "config": config, "layers": [layer], "annotations": labels,
    });
    let mut manifest = keep_json(&blobs, &manifest, kind)?;
    // The tag, and the name that `docker load` gives it.
    manifest["annotations"] = json!({
        "org.opencontainers.image.ref.name": VERSION,
        "io.containerd.image.name": format!("docker.io/library/ironwarp:{VERSION}"),
    });
    let kind = "application/vnd.oci.image.index.v1+json";
    write(
        &layout.join("index.json"),
        &json!({"schemaVersion": 2, "mediaType": kind, "manifests": [manifest]}),
    )?;
    write(&layout.join("oci-layout"), &json!({"imageLayoutVersion": "1.0.0"}))?;
    release.tar(&[], &layout, &["blobs", "index.json", "oci-layout"], &release.image()?)
}

/// Unpacks the files of an image into a folder, and checks all digests on the way.
pub(crate) fn unpack(archive: &Path, folder: &Path) -> Result {
    let layout = folder.with_extension("layout");
    for folder in [&layout, folder] {
        fs::create_dir_all(folder).map_err(at(folder))?;
    }
    run(command("tar", &["--extract", "--file"]).arg(archive).arg("--directory").arg(&layout))?;
    let index = read(&layout.join("index.json"))?;
    let blob = |descriptor: &Value| {
        let digest = descriptor["digest"].as_str().and_then(|digest| digest.strip_prefix("sha256:"));
        let digest = digest.ok_or_else(|| format!("no digest in {descriptor}"))?;
        let file = layout.join("blobs/sha256").join(digest);
        let len = fs::metadata(&file).map_err(at(&file))?.len();
        match sha256(&file)? == digest && descriptor["size"] == len {
            true => Ok(file),
            false => Err(format!("{} has another digest or size", file.display())),
        }
    };
    let manifest = read(&blob(&index["manifests"][0])?)?;
    let config = read(&blob(&manifest["config"])?)?;
    let layer = folder.with_extension("layer.gz");
    fs::copy(blob(&manifest["layers"][0])?, &layer).map_err(at(&layer))?;
    run(command("gunzip", &["--force", "--"]).arg(&layer))?;
    let layer = layer.with_extension("");
    if config["rootfs"]["diff_ids"][0] != format!("sha256:{}", sha256(&layer)?) {
        return Err(format!("{}: the layer differs from its diff_id", archive.display()));
    }
    run(command("tar", &["--extract", "--file"]).arg(&layer).arg("--directory").arg(folder))?;
    fs::remove_file(&layer).map_err(at(&layer))?;
    fs::remove_dir_all(&layout).map_err(at(&layout))
}

/// Names a blob by its digest, and returns its descriptor.
fn keep(blobs: &Path, file: &Path, kind: &str) -> Result<Value> {
    let (digest, len) = (sha256(file)?, fs::metadata(file).map_err(at(file))?.len());
    fs::rename(file, blobs.join(&digest)).map_err(at(file))?;
    Ok(json!({"mediaType": kind, "digest": format!("sha256:{digest}"), "size": len}))
}

fn keep_json(blobs: &Path, value: &Value, kind: &str) -> Result<Value> {
    let file = blobs.join("json");
    write(&file, value)?;
    keep(blobs, &file, kind)
}

fn write(file: &Path, value: &Value) -> Result {
    fs::write(file, value.to_string()).map_err(at(file))
}

fn read(file: &Path) -> Result<Value> {
    let text = fs::read_to_string(file).map_err(at(file))?;
    serde_json::from_str(&text).map_err(|error| format!("{}: {error}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    /// Packs an image in a folder of its own.
    fn packed(name: &str) -> Release {
        let dist = std::env::temp_dir().join(format!("ironwarp-image-{name}-{}", std::process::id()));
        let release = Release { dist, time: "86400".into() };
        let tree = release.tree();
        fs::create_dir_all(tree.join("bin")).unwrap();
        fs::create_dir_all(tree.join("lib")).unwrap();
        symlink("../lib", tree.join("share")).unwrap();
        for file in ["bin/ironwarp", "LICENSE-APACHE", "LICENSE-MIT"] {
            fs::write(tree.join(file), file).unwrap();
        }
        pack(&release).unwrap();
        release
    }

    #[test]
    fn an_image_contains_the_files() {
        let release = packed("files");
        let folder = release.dist.join("files");
        unpack(&release.image().unwrap(), &folder).unwrap();
        let installed = folder.join(FOLDER);
        assert_eq!(fs::read_to_string(installed.join("bin/ironwarp")).unwrap(), "bin/ironwarp");
        assert_eq!(fs::read_link(installed.join("share")).unwrap(), Path::new("../lib"));
        fs::remove_dir_all(&release.dist).unwrap();
    }

    #[test]
    fn a_damaged_blob_is_found() {
        let release = packed("damage");
        let blobs = release.dist.join("oci/blobs/sha256");
        let blob = |blob: &fs::DirEntry| blob.metadata().unwrap().len();
        let largest = fs::read_dir(blobs).unwrap().flatten().max_by_key(blob).unwrap().path();
        let mut bytes = fs::read(&largest).unwrap();
        bytes[20] ^= 1;
        fs::write(&largest, bytes).unwrap();
        let (layout, image) = (release.dist.join("oci"), release.image().unwrap());
        release.tar(&[], &layout, &["blobs", "index.json", "oci-layout"], &image).unwrap();
        let error = unpack(&image, &release.dist.join("files")).unwrap_err();
        assert!(error.contains("another digest"), "{error}");
        fs::remove_dir_all(&release.dist).unwrap();
    }
}
