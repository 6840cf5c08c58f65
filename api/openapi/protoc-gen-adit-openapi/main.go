// protoc-gen-adit-openapi writes the OpenAPI document of the hub API from its descriptors. buf
// runs it; see api/buf.gen.yaml.
package main

import (
	"encoding/json"
	"strings"

	"google.golang.org/protobuf/compiler/protogen"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/pluginpb"
)

func main() {
	protogen.Options{}.Run(func(p *protogen.Plugin) error {
		p.SupportedFeatures = uint64(pluginpb.CodeGeneratorResponse_FEATURE_PROTO3_OPTIONAL)
		d := newDocument()
		for _, f := range p.Files {
			if !f.Generate {
				continue
			}
			for _, s := range f.Services {
				d.service(s)
			}
		}
		out := p.NewGeneratedFile("openapi/openapi.json", "")
		b, err := json.MarshalIndent(d, "", " ")
		if err != nil {
			return err
		}
		_, err = out.Write(append(b, '\n'))
		return err
	})
}

// object is a JSON object; encoding/json sorts its keys.
type object = map[string]any

type document struct {
	OpenAPI    string     `json:"openapi"`
	Info       object     `json:"info"`
	Security   []object   `json:"security"`
	Tags       []object   `json:"tags"`
	Paths      object     `json:"paths"`
	Components components `json:"components"`
}

type components struct {
	Schemas         object `json:"schemas"`
	Responses       object `json:"responses"`
	SecuritySchemes object `json:"securitySchemes"`
}

// machineService is for agents and edges: it needs a proven connection, so no tool can call it.
const machineService = "MachineService"

// openService needs no key: it is how a tool gets one.
const openService = "DeviceService"

func newDocument() *document {
	return &document{
		OpenAPI: "3.1.0",
		Info: object{
			"title": "Adit hub API", "version": "v1",
			"description": "Connect RPC over HTTPS: POST a JSON object to the path of a procedure. Fields are camelCase; " +
				"what is left out has its default. Streams need a Connect or gRPC client.",
		},
		Security: []object{{"key": []string{}}},
		Paths:    object{},
		Components: components{
			Schemas: object{"Error": object{
				"type": "object", "description": "Why the call failed. The header Adit-Error repeats the code of the first detail.",
				"properties": object{
					"code":    object{"type": "string", "description": "A code of Connect, as invalid_argument."},
					"message": object{"type": "string"},
					"details": object{"type": "array", "items": object{"type": "object", "properties": object{
						"type": object{"type": "string", "const": "adit.hub.v1.Problem"},
						"value": object{"type": "string", "contentEncoding": "base64",
							"description": "A Problem in protobuf: code, field, value, remedy, and of a conflict holder and held."},
						"debug": ref("Problem"),
					}}},
				},
			}, "Problem": object{
				"type": "object", "description": "What the hub explains of an error.",
				"properties": object{
					"code": str("A reason code, as invalid or name_conflict."), "field": str("The field of the request, as hostnames[1]."),
					"value": str("Its value as it was sent."), "remedy": str("What to do about it."),
					"holder": str("Conflicts: the tenant that holds the name or port."), "held": str("What it holds."),
				},
			}},
			Responses: object{"Error": object{
				"description": "The call failed.", "content": object{"application/json": object{"schema": ref("Error")}},
			}},
			SecuritySchemes: object{"key": object{"type": "http", "scheme": "bearer", "description": "An API key: adit key create."}},
		},
	}
}

func ref(name string) object { return object{"$ref": "#/components/schemas/" + name} }

func (d *document) service(s *protogen.Service) {
	name := string(s.Desc.Name())
	if name == machineService {
		return
	}
	tag := object{"name": name}
	describe(tag, s.Comments)
	d.Tags = append(d.Tags, tag)
	for _, m := range s.Methods {
		kind := "application/json"
		if m.Desc.IsStreamingServer() {
			kind = "application/connect+json"
		}
		call := object{
			"operationId": name + "_" + string(m.Desc.Name()), "tags": []string{name},
			"requestBody": object{"required": true, "content": object{kind: object{"schema": d.message(m.Input)}}},
			"responses": object{
				"200":     object{"description": "Done.", "content": object{kind: object{"schema": d.message(m.Output)}}},
				"default": object{"$ref": "#/components/responses/Error"},
			},
		}
		describe(call, m.Comments)
		if name == openService {
			call["security"] = []object{}
		}
		d.Paths["/"+string(s.Desc.FullName())+"/"+string(m.Desc.Name())] = object{"post": call}
	}
}

func str(description string) object { return object{"type": "string", "description": description} }

// message adds a message to the schemas and returns a reference to it.
func (d *document) message(m *protogen.Message) object {
	if s := wellKnown(m.Desc.FullName()); s != nil {
		return s
	}
	name := strings.ReplaceAll(strings.TrimPrefix(string(m.Desc.FullName()), string(m.Desc.ParentFile().Package())+"."), ".", "_")
	if _, done := d.Components.Schemas[name]; done {
		return ref(name)
	}
	properties := object{}
	schema := object{"type": "object", "properties": properties}
	describe(schema, m.Comments)
	d.Components.Schemas[name] = schema // before its fields: they may refer to it
	for _, f := range m.Fields {
		p := d.field(f)
		describe(p, f.Comments)
		properties[f.Desc.JSONName()] = p
	}
	return ref(name)
}

func (d *document) field(f *protogen.Field) object {
	switch {
	case f.Desc.IsMap():
		return object{"type": "object", "additionalProperties": d.value(f.Message.Fields[1])}
	case f.Desc.IsList():
		return object{"type": "array", "items": d.value(f)}
	}
	return d.value(f)
}

func (d *document) value(f *protogen.Field) object {
	switch f.Desc.Kind() {
	case protoreflect.BoolKind:
		return object{"type": "boolean"}
	case protoreflect.Int32Kind, protoreflect.Sint32Kind, protoreflect.Sfixed32Kind:
		return object{"type": "integer", "format": "int32"}
	case protoreflect.Uint32Kind, protoreflect.Fixed32Kind:
		return object{"type": "integer", "format": "int64", "minimum": 0}
	case protoreflect.Int64Kind, protoreflect.Sint64Kind, protoreflect.Sfixed64Kind, protoreflect.Uint64Kind, protoreflect.Fixed64Kind:
		return object{"type": "string", "format": "int64"} // JSON numbers are too small
	case protoreflect.FloatKind, protoreflect.DoubleKind:
		return object{"type": "number"}
	case protoreflect.BytesKind:
		return object{"type": "string", "contentEncoding": "base64"}
	case protoreflect.EnumKind:
		var names []string
		for _, v := range f.Enum.Values {
			names = append(names, string(v.Desc.Name()))
		}
		return object{"type": "string", "enum": names}
	case protoreflect.MessageKind, protoreflect.GroupKind:
		return d.message(f.Message)
	default:
		return object{"type": "string"}
	}
}

// wellKnown is how the JSON of protobuf writes Google's own types.
func wellKnown(name protoreflect.FullName) object {
	switch name {
	case "google.protobuf.Timestamp":
		return object{"type": "string", "format": "date-time"}
	case "google.protobuf.Duration":
		return object{"type": "string", "examples": []string{"86400s"}}
	case "google.protobuf.FieldMask":
		return object{"type": "string", "examples": []string{"origins,responseTimeoutSeconds"}}
	}
	return nil
}

// describe adds what the comments of the descriptor say.
func describe(o object, c protogen.CommentSet) {
	if text := strings.Join(strings.Fields(string(c.Leading)), " "); text != "" {
		o["description"] = text
	}
}
