// Package openapi is the OpenAPI document of the hub API, made from its descriptors.
package openapi

import _ "embed"

// Document is JSON, OpenAPI 3.1.
//
//go:embed openapi.json
var Document []byte
