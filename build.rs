//! Generates the gRPC types from `proto/`, without a system protoc.

use protox::prost::Message as _;
use std::path::PathBuf;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto");
    let descriptors = protox::compile(
        [
            "turnkeep/v1/memory_service.proto",
            "turnkeep/v1/model_service.proto",
            "turnkeep/v1/session_service.proto",
            "turnkeep/v1/tool_output_service.proto",
            "turnkeep/v1/transcript_service.proto",
        ],
        ["proto"],
    )?;
    // Reflection serves the same descriptors.
    let out_dir = PathBuf::from(std::env::var("OUT_DIR")?);
    std::fs::write(out_dir.join("turnkeep.bin"), descriptors.encode_to_vec())?;
    tonic_prost_build::configure()
        .build_server(std::env::var_os("CARGO_FEATURE_SERVER").is_some())
        .bytes(".turnkeep.v1")
        .compile_fds(descriptors)?;
    Ok(())
}
